"""What a followed script sees of its tensors, of ``torch.cuda`` and of the process group, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / stage) for stage in ("profile", "parse", "reports"))}

BEGIN = """
import importlib
import sys
from pathlib import Path
import deepspeed
import numpy
import torch
import transformers
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.data import DataLoader, TensorDataset
from zeropeak.profile.labels import Status
from zeropeak.profile.script_plan import ScriptPlan
from zeropeak.profile.simulate.answers import DataNeeded
from zeropeak.profile.simulate.device import register
from zeropeak.profile.simulate.script_simulation import ScriptSimulation
register()  # the device itself cannot be taken back
plan = ScriptPlan("train.py", False, (), "train", world_size=4, local_world_size=2, steps=1)
simulation = ScriptSimulation(Path(sys.argv[1]), plan)
def refused(ask):
    try:
        ask()
    except DataNeeded:
        return True
    return False
"""

PATCHES_UNDONE = """
owners = [torch, torch.Tensor, FakeTensor, nn.Module, torch.UntypedStorage, torch.autocast, torch.cuda, torch.cuda.nvtx,
          torch.distributed, DataLoader, transformers.PreTrainedModel, importlib.import_module('torch.optim.optimizer')]
before = [dict(vars(owner)) for owner in owners]
environ = dict(__import__('os').environ)
with simulation:
    changed = [owner for owner, was in zip(owners, before) if dict(vars(owner)) != was]
    assert len(changed) == len(owners), [owner for owner in owners if owner not in changed]
assert [dict(vars(owner)) for owner in owners] == before
assert dict(__import__('os').environ) == environ
"""

KNOWN_ON_THE_GPU = """
with simulation:
    ids = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]]).to("cuda")
    mask = ids != 0
    assert mask.sum().item() == 5 and not mask.all() and bool(mask.any())
    assert mask.sum(1).max().item() == 3 and ids.cpu().tolist() == [[5, 6, 7, 0], [8, 9, 0, 0]]
    assert int(ids.argmax()) == 5 and ids.cpu().numpy().shape == (2, 4)
    hidden = torch.randn(2, 4, 8, device="cuda")
    assert hidden[mask].shape == (5, 8) and hidden[mask].device.type == "simulated"
    assert torch.nonzero(mask).shape == (5, 2) and ids[mask].tolist() == [5, 6, 7, 8, 9]
    assert torch.unique(ids).numel() == 6
    labels = ids.clone()
    row = labels[0]
    labels[~mask] = -100
    assert row.tolist() == [5, 6, 7, -100]  # a view sees what is written through its base
    assert ids.tolist()[0] == [5, 6, 7, 0]
    row.masked_fill_(hidden[0, :, 0] > 0, 1)  # by what nobody knows
    assert refused(lambda: labels.sum().item()) and refused(lambda: row[0].item())
    assert ids.sum().item() == 35
    gathered = [torch.empty_like(ids) for _ in range(4)]
    distributed.all_gather(gathered, ids)
    assert gathered[1].sum().item() == 35  # all ranks have what rank 0 has
    whole = torch.empty(8, 4, dtype=torch.long, device="cuda")
    distributed.all_gather_into_tensor(whole, ids)
    assert whole.sum().item() == 4 * 35
    distributed.reduce_scatter_tensor(torch.empty_like(ids), whole)
    distributed.all_to_all_single(whole, whole.clone())
    assert refused(lambda: whole.sum().item())
    assert refused(lambda: bool(hidden.sum() > 0)) and refused(lambda: hidden[hidden > 0])
    assert refused(lambda: (hidden > 0).cpu().numpy()) and refused(lambda: (hidden > 0).sum().item())
    assert hidden.mean().item() == 1.0 and f"{hidden.sum():.1f}" == "1.0"
    assert hidden.cpu().numpy().sum() == 64 and numpy.asarray(hidden[0, 0].detach().cpu()).shape == (8,)
    state = torch.get_rng_state()
    torch.set_rng_state(state.to("cuda").cpu())
told = simulation.readings.sentences()
assert len(told) == 2 and all("reads a number, and is told 1.0" in one for one in told), told
"""

REAL_IN_HOST_MEMORY = """
with simulation:
    lengths = torch.randint(5, 9, (4,))
    assert 5 <= int(lengths.max()) <= 8 and not isinstance(lengths, FakeTensor)
    data = TensorDataset(torch.arange(10), torch.from_numpy(numpy.arange(10.0)))
    loader = DataLoader(data, 4, shuffle=True, num_workers=3, pin_memory=True, persistent_workers=True)
    batches = [(len(ids), float(values.sum())) for ids, values in loader]
    assert [length for length, _ in batches] == [4, 4, 2] and sum(value for _, value in batches) == 45
    assert torch.arange(3).pin_memory().tolist() == [0, 1, 2]
    assert isinstance(torch.randn(3), FakeTensor) and isinstance(torch.randint(0, 9, (1 << 25,)), FakeTensor)
"""

CUDA_ANSWERS = """
with simulation:
    for made in (torch.ones(2, device="cuda"), torch.ones(2).cuda(), torch.ones(2).to("cuda:0"), torch.arange(2).to(0),
                 nn.Linear(2, 2).cuda().weight, nn.Linear(2, 2).to(torch.device("cuda", 1)).weight,
                 torch.tensor([1, 2], device="cuda"), torch.as_tensor([1.0], device="cuda"),
                 torch.ones(2).to(device="cuda", dtype=torch.float16, non_blocking=True)):
        assert made.device == torch.device("simulated", 0) and made.is_cuda, made
    assert not torch.ones(2).is_cuda
    torch.set_default_device("cuda")
    assert torch.zeros(2).is_cuda
    torch.set_default_device(None)
    with torch.device("cuda"):
        assert nn.Linear(2, 2).weight.is_cuda
    assert torch.cuda.is_available() and torch.cuda.device_count() == 2 and torch.cuda.is_bf16_supported()
    before = torch.cuda.memory_allocated()
    kept = torch.empty(1 << 20, device="cuda")
    assert torch.cuda.memory_allocated() - before == 1 << 22 and torch.cuda.max_memory_reserved() >= 1 << 22
    highest = torch.cuda.max_memory_allocated()
    del kept
    assert torch.cuda.max_memory_allocated() == highest == before + (1 << 22)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == before
    kept = torch.empty(8, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        kept.record_stream(stream)
    torch.cuda.manual_seed_all(1)
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    deepspeed.checkpointing.checkpoint(nn.Linear(4, 4).cuda(), torch.randn(2, 4, device="cuda", requires_grad=True))
    loss = torch.ones((), device="cuda")
    assert not (torch.isnan(loss) | torch.isinf(loss)) and torch.isfinite(loss).all() and not loss.isnan()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        pass
assert any("autocast, which is not predicted" in line for line in simulation.readings.sentences())
"""

AS_CUDA_DOES = """
with simulation:
    def made(*sides, dtype=torch.bfloat16):
        return torch.randn(*sides, device="cuda", dtype=dtype, requires_grad=True)
    try:
        made(2, 4) @ made(4, 2, dtype=torch.float32)
    except RuntimeError as problem:
        assert "expected mat1 and mat2 to have the same dtype, but got: bfloat16 != float32" in str(problem)
    else:
        raise AssertionError("no error")
    # Four times as many heads of queries as of keys: flash attention takes them as they are, and makes no copies.
    query, key, value = made(1, 8, 512, 64), made(1, 2, 512, 64), made(1, 2, 512, 64)
    before = torch.cuda.memory_allocated()
    out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    assert out.shape == query.shape
    assert torch.cuda.memory_allocated() - before == 2 * 8 * 512 * 64 + 4 * 8 * 512 + 1024  # output, row sums, seeds
    mask = torch.zeros(1, 1, 512, 512, device="cuda", dtype=torch.bfloat16)
    out = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    out.sum().backward()
    assert key.grad.shape == key.shape
"""

GROUP_ANSWERS = """
with simulation:
    distributed.init_process_group("nccl")
    assert (distributed.get_world_size(), distributed.get_rank()) == (4, 0)
    everyone, one, some = [None] * 4, [7], [None]
    distributed.all_gather_object(everyone, {"a": 1})
    distributed.broadcast_object_list(one, src=0)
    distributed.scatter_object_list(some, [1, 2, 3, 4])
    assert (everyone, one, some) == ([{"a": 1}] * 4, [7], [1])
    group = distributed.new_group([0, 1], backend="nccl")
    total = torch.ones(3, device="cuda")
    distributed.all_reduce(total, group=group)
    distributed.barrier()
    distributed.destroy_process_group()
    assert distributed.is_initialized()
"""


@pytest.mark.parametrize(
    "code",
    [PATCHES_UNDONE, KNOWN_ON_THE_GPU, REAL_IN_HOST_MEMORY, CUDA_ANSWERS, AS_CUDA_DOES, GROUP_ANSWERS],
    ids=["patches", "known", "real", "cuda", "kernels", "group"],
)
def test_a_script_sees(code: str, tmp_path: Path) -> None:
    whole = f"{BEGIN}{code}\nsimulation.close(Status.COMPLETE, None)\nprint('done')\n"
    (tmp_path / "script.py").write_text(whole)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    answer = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=False)
    assert answer.stdout.endswith("done\n"), answer.stderr
