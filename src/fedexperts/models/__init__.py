"""Models as named parts: extractors of images and texts, heads, gates. Nothing federated."""

from fedexperts.models.backbones import BatchNorm
from fedexperts.models.classifier import Classifier
from fedexperts.models.cnn import ConvExtractor, Shape
from fedexperts.models.elastic import ElasticExpert
from fedexperts.models.experts import BlockExperts, SparseExperts, cut, strongest
from fedexperts.models.gate import DeepGate, Gate, GateActivation, GateNorms, GateStart, SwitchNorm
from fedexperts.models.text import TextExtractor, WordMean
from fedexperts.models.zoo import (
    BACKBONES,
    IMAGE_MODELS,
    MODELS,
    TEXT_MODELS,
    Parts,
    blank,
    build,
    check_model,
    flat,
    is_backbone,
    out_shape,
    reads_text,
    smallest,
)

__all__ = [
    "BACKBONES",
    "IMAGE_MODELS",
    "MODELS",
    "TEXT_MODELS",
    "BatchNorm",
    "BlockExperts",
    "Classifier",
    "ConvExtractor",
    "DeepGate",
    "ElasticExpert",
    "Gate",
    "GateActivation",
    "GateNorms",
    "GateStart",
    "Parts",
    "Shape",
    "SparseExperts",
    "SwitchNorm",
    "TextExtractor",
    "WordMean",
    "blank",
    "build",
    "check_model",
    "cut",
    "flat",
    "is_backbone",
    "out_shape",
    "reads_text",
    "smallest",
    "strongest",
]
