"""Models as named parts: extractors of images and texts, heads, gates. Nothing federated."""

from fedexperts.models.backbones import BatchNorm
from fedexperts.models.classifier import Classifier
from fedexperts.models.cnn import ConvExtractor, Shape
from fedexperts.models.elastic import ElasticExpert
from fedexperts.models.experts import BlockExperts, DenseExperts, SparseExperts, best_of, cut, form, strongest
from fedexperts.models.gate import DeepGate, Gate, GateActivation, GateNorms, GateStart, SwitchNorm
from fedexperts.models.mlp import TableExtractor
from fedexperts.models.outline import Outline, Stem
from fedexperts.models.own import Extractor, ModelSource, OwnModel, Parts, check_own, is_place, split, told_apart
from fedexperts.models.text import TextExtractor, WordMean
from fedexperts.models.zoo import (
    BACKBONES,
    IMAGE_MODELS,
    MODELS,
    SLIM,
    TABLE_MODELS,
    TEXT_MODELS,
    ModelRef,
    blank,
    build,
    check_model,
    flat,
    is_backbone,
    model_ref,
    out_shape,
    own_model,
    place_of,
    reads_text,
    smallest,
)

__all__ = [
    "BACKBONES", "IMAGE_MODELS", "MODELS", "SLIM", "TABLE_MODELS", "TEXT_MODELS", "BatchNorm", "BlockExperts",
    "Classifier", "ConvExtractor", "DeepGate", "DenseExperts", "ElasticExpert", "Extractor", "Gate", "GateActivation",
    "GateNorms", "GateStart", "ModelRef", "ModelSource", "Outline", "OwnModel", "Parts", "Shape", "SparseExperts",
    "Stem", "SwitchNorm", "TableExtractor", "TextExtractor", "WordMean", "best_of", "blank", "build", "check_model",
    "check_own", "cut", "flat", "form", "is_backbone", "is_place", "model_ref", "out_shape", "own_model", "place_of",
    "reads_text", "smallest", "split", "strongest", "told_apart",
]  # fmt: skip
