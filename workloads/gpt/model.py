"""GPT-2 (Radford et al. 2019): a decoder-only Transformer with pre-norm and one matrix for embedding and output.

Shapes: N windows, t tokens of a window, D hidden size, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.nn.autocast import matmul_dtype
from ..common.nn.dropout import dropout
from ..common.translation.fused_linear_cross_entropy import fused_linear_cross_entropy
from .add_layer_norm import add_layer_norm
from .fused_linear import linear_gelu, linear_heads

_INIT_STD = 0.02
_FFN_RATIO = 4  # width of the feed-forward layers over the hidden size


class GPT(nn.Module):
    """Map windows of tokens to the summed cross entropy of each next token."""

    def __init__(
        self,
        vocab_size: int,
        context: int,
        hidden_size: int,
        num_heads: int,
        num_layers: int,
        *,
        dropout: float,
        bias: bool,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.embedding = nn.Parameter(torch.empty(vocab_size, hidden_size))
        self.position = nn.Parameter(torch.empty(context, hidden_size))
        self.layers = nn.ModuleList(Layer(hidden_size, num_heads, dropout, bias=bias) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size, bias=bias)
        self._initialize()

    def forward(self, windows: Tensor) -> Tensor:
        """Return the cross entropy summed over all predictions; `windows` int64 [N, t + 1] hold inputs and targets."""
        x = self.hidden_states(windows[:, :-1])
        return fused_linear_cross_entropy(
            x.flatten(0, 1),
            self.embedding,
            None,
            windows[:, 1:].flatten(),
            target_weight=1.0,
            smoothing_weight=0.0,
        )

    def hidden_states(self, tokens: Tensor) -> Tensor:
        """Return the states [N, t, D] from which the token after each of `tokens` int64 [N, t] is predicted."""
        x = F.embedding(tokens, self.embedding) + self.position[: tokens.shape[1]]
        x = dropout(x.to(matmul_dtype(x)), self.dropout, self.training)
        terms: tuple[Tensor, Tensor | None, Tensor | None] = x, None, None
        for layer in self.layers:
            terms = layer(*terms)
        return add_layer_norm(self.norm, *terms)[1]

    def _initialize(self) -> None:
        """Draw all matrices from N(0, 0.02^2), those that end a residual branch 1 / sqrt(2 layers) narrower."""
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                ends_branch = name.endswith(("out.weight", "ffn_down.weight"))
                scale = (2 * len(self.layers)) ** -0.5 if ends_branch else 1.0
                nn.init.normal_(parameter, std=_INIT_STD * scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


class Layer(nn.Module):
    """Causal self-attention and feed-forward network, each with pre-norm and residual connection."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float, *, bias: bool) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.attention_norm = nn.LayerNorm(hidden_size, bias=bias)
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size, bias=bias)
        self.out = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.ffn_norm = nn.LayerNorm(hidden_size, bias=bias)
        self.ffn_up = nn.Linear(hidden_size, _FFN_RATIO * hidden_size, bias=bias)
        self.ffn_down = nn.Linear(_FFN_RATIO * hidden_size, hidden_size, bias=bias)

    def forward(
        self, x: Tensor, branch: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Apply the layer to x + branch + bias [N, t, D], and return the input of the next one as terms likewise."""
        x, normalized = add_layer_norm(self.attention_norm, x, branch, bias)
        q, k, v = linear_heads(self.qkv, normalized, self.num_heads)
        attention_dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=attention_dropout, is_causal=True)
        x, normalized = add_layer_norm(self.ffn_norm, x, *self._branch(self.out, attended.transpose(1, 2).flatten(2)))
        return x, *self._branch(self.ffn_down, linear_gelu(self.ffn_up, normalized))

    def _branch(self, linear: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the output of a branch, and its bias if the next layer norm adds it, which saves a memory pass."""
        if self.dropout:
            return dropout(linear(x), self.dropout, self.training), None
        return F.linear(x, linear.weight), linear.bias
