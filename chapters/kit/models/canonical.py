"""The passes that bring an imported graph into the forms that the course's passes look for, in their order."""

from __future__ import annotations

import tvm

from chapters.kit.models.drop_no_ops import DropNoOps
from chapters.kit.models.expand_powers import ExpandPowers
from chapters.kit.models.keep_leading_dims import KeepLeadingDims
from chapters.kit.models.recognize_linear import RecognizeLinear
from chapters.kit.models.recognize_patches import RecognizePatches
from chapters.kit.models.recognize_rms_norm import RecognizeRMSNorm


def canonicalize() -> tvm.transform.Pass:
    """One pass: no-ops out of the way, then norms and linear layers, then the reshapes between them."""
    recognize = [RecognizeRMSNorm(), ExpandPowers(), RecognizeLinear(), RecognizePatches()]
    passes = [DropNoOps(), *recognize, KeepLeadingDims(), DropNoOps()]
    return tvm.transform.Sequential(passes, name="canonicalize")
