"""Models as named parts: extractors, heads, gates. Nothing federated."""

from fedexperts.models.classifier import Classifier
from fedexperts.models.cnn import ConvExtractor, Shape
from fedexperts.models.experts import BlockExperts, SparseExperts
from fedexperts.models.gate import DeepGate, Gate, GateActivation, GateNorms, GateStart, SwitchNorm
from fedexperts.models.zoo import MODELS, SMALLEST, Parts, build, check_model

__all__ = [
    "MODELS",
    "SMALLEST",
    "BlockExperts",
    "Classifier",
    "ConvExtractor",
    "DeepGate",
    "Gate",
    "GateActivation",
    "GateNorms",
    "GateStart",
    "Parts",
    "Shape",
    "SparseExperts",
    "SwitchNorm",
    "build",
    "check_model",
]
