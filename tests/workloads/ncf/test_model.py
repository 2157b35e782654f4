"""NeuMF against a float64 transcription of the MLPerf v0.5 definition."""

import math

import pytest
import torch
import torch.nn.functional as F

from timetrial.workloads.ncf.model import NeuMF
from timetrial.workloads.ncf.sampling import IGNORED, segment_starts, sort_by_item

USERS, ITEMS, MLP_LAYER_SIZES, MF_DIM = 40, 30, (32, 64, 16, 16), 16


def make_batch(samples, users=USERS, items=ITEMS, seed=0):
    g = torch.Generator().manual_seed(seed)
    u = torch.randint(users, (samples,), generator=g, dtype=torch.int32).sort().values
    i = torch.randint(items, (samples,), generator=g, dtype=torch.int32)
    labels = torch.randint(2, (samples,), generator=g).float()
    by_item, item_starts = sort_by_item(i, items)
    return u, i, labels, by_item, segment_starts(u, users), item_starts


def make_model(seed=0):
    torch.manual_seed(seed)
    model = NeuMF(USERS, ITEMS, MF_DIM, MLP_LAYER_SIZES)
    with torch.no_grad():  # larger than the initial values, so that every term contributes
        for table in (model.gmf_user, model.gmf_item, model.mlp_user, model.mlp_item):
            table.weight.mul_(50)
    return model


def oracle_logits(p, u, i):
    """Logits by definition: concatenate embeddings, three ReLU layers, concatenate with GMF, output layer."""
    h = torch.cat([p["mlp_user.weight"][u], p["mlp_item.weight"][i]], -1)
    for n in range(len(MLP_LAYER_SIZES) - 1):
        h = torch.relu(h @ p[f"hidden.{n}.weight"].T + p[f"hidden.{n}.bias"])
    both = torch.cat([p["gmf_user.weight"][u] * p["gmf_item.weight"][i], h], -1)
    return (both @ p["output.weight"].T + p["output.bias"])[..., 0]


def oracle(model, u, i, labels):
    """Return the loss and the gradients by name in float64, with PyTorch's own embedding gradient."""
    p = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}
    loss = F.binary_cross_entropy_with_logits(oracle_logits(p, u.long(), i.long()), labels.double(), reduction="sum")
    return loss, dict(zip(p, torch.autograd.grad(loss, list(p.values())), strict=True))


def relative_error(value, reference):
    return ((value.double() - reference).norm() / reference.norm().clamp_min(1e-300)).item()


@pytest.mark.parametrize("samples", [500, 20])  # project the tables; look up rows first
def test_loss_and_gradients_equal_oracle(samples):
    model, batch = make_model(), make_batch(samples)
    loss = model(*batch)
    (loss / samples).backward()
    expected, gradients = oracle(model, *batch[:3])
    assert loss.dtype == torch.float32
    assert loss.shape == ()
    assert relative_error(loss, expected) < 1e-6
    for name, value in model.named_parameters():
        assert relative_error(value.grad * samples, gradients[name]) < 2e-6, name


@pytest.mark.parametrize("samples", [500, 20])
def test_ignored_samples_do_not_count(samples):
    model, batch = make_model(), make_batch(samples)
    counts = torch.arange(samples) % 3 > 0
    batch[2][~counts] = IGNORED
    loss = model(*batch)
    loss.backward()
    expected, gradients = oracle(model, *(tensor[counts] for tensor in batch[:3]))
    assert relative_error(loss, expected) < 1e-6
    for name, value in model.named_parameters():
        assert relative_error(value.grad, gradients[name]) < 2e-6, name


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.15), (torch.float16, 0.03)])
@pytest.mark.parametrize("samples", [500, 20])
def test_autocast_is_close_to_oracle(samples, dtype, bound):
    model, batch = make_model(), make_batch(samples)
    with torch.autocast("cpu", dtype=dtype):
        loss = model(*batch)
    loss.backward()
    expected, gradients = oracle(model, *batch[:3])
    assert loss.dtype == torch.float32
    assert relative_error(loss, expected) < bound
    for name, value in model.named_parameters():
        assert value.grad.dtype == torch.float32
        assert relative_error(value.grad, gradients[name]) < bound, name


def test_empty_batch_gives_zero_gradients():
    model = make_model()
    loss = model(*make_batch(0))
    loss.backward()
    assert loss.item() == 0
    assert all(value.grad is not None and not value.grad.any() for value in model.parameters())


def test_scores_equal_oracle_logits():
    model = make_model()
    users, items = torch.tensor([3, 7, 7], dtype=torch.int32), make_batch(36)[1].view(3, 12)
    scores = model.scores(users, items)
    p = {name: value.double() for name, value in model.named_parameters()}
    assert scores.dtype == torch.float32
    assert not scores.requires_grad
    assert relative_error(scores, oracle_logits(p, users.long()[:, None].expand(3, 12), items.long()).detach()) < 1e-6
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.scores(users, items).dtype == torch.float32


def test_parameter_count_and_initialization():
    with torch.device("meta"):
        model = NeuMF(138_493, 26_744, 64, (256, 256, 128, 64))
    assert sum(value.numel() for value in model.parameters()) == 31_832_577
    torch.manual_seed(1)
    model = NeuMF(500, 400, 64, (256, 256, 128, 64))
    for table in (model.gmf_user, model.gmf_item, model.mlp_user, model.mlp_item):
        assert table.weight.std().item() == pytest.approx(0.01, rel=0.05)
    for layer in model.hidden:
        bound = math.sqrt(6 / (layer.in_features + layer.out_features))
        assert bound * 0.98 < layer.weight.abs().max().item() <= bound
    bound = math.sqrt(3 / 128)
    assert bound * 0.9 < model.output.weight.abs().max().item() <= bound


def test_rejects_odd_mlp_input_size():
    with pytest.raises(ValueError, match="even input size"):
        NeuMF(5, 5, 4, (7, 4))


def test_compiled_gradients_equal_oracle():
    model, batch = make_model(), make_batch(50)
    torch.compile(model, backend="eager")(*batch).backward()
    assert relative_error(model.gmf_item.weight.grad, oracle(model, *batch[:3])[1]["gmf_item.weight"]) < 2e-6
