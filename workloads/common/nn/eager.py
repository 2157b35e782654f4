"""Functions that torch.compile leaves as they are."""

from torch._compile import _disable_dynamo

# `torch.compiler.disable` loads the compiler when a module that uses it is imported, which takes seconds, also in
# processes that compile nothing. This one, of PyTorch's own modules, loads it with the first call.
keep_eager = _disable_dynamo
