"""Functions that torch.compile leaves as they are."""

from torch._compile import _disable_dynamo

# `torch.compiler.disable` loads the compiler when it decorates a function, which takes seconds, also in processes that
# compile nothing. `_disable_dynamo`, by which PyTorch decorates its own functions, loads it at the first call.
keep_eager = _disable_dynamo
