"""Models as named parts: extractors, heads, gates. Nothing federated."""

from fedexperts.models.classifier import Classifier
from fedexperts.models.cnn import ConvExtractor, Shape
from fedexperts.models.experts import BlockExperts, SparseExperts, cut
from fedexperts.models.gate import Gate, GateNorms, SwitchNorm
from fedexperts.models.zoo import MODELS, SMALLEST, Parts, build, check_model

__all__ = [
    "MODELS",
    "SMALLEST",
    "BlockExperts",
    "Classifier",
    "ConvExtractor",
    "Gate",
    "GateNorms",
    "Parts",
    "Shape",
    "SparseExperts",
    "SwitchNorm",
    "build",
    "check_model",
    "cut",
]
