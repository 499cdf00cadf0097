"""What holds for any trace on any deployment: nothing is lost, nothing leaks, no limit is exceeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from inference_lab.core.engine.cluster import Cluster, simulate
from inference_lab.core.engine.deployment_spec import (
    Deployment,
    KvAware,
    KvAwareDecode,
    LeastLoaded,
    PrefixAffinity,
    RoundRobin,
    SchedulerSpec,
)
from inference_lab.core.engine.model_costs import KvLayout
from inference_lab.core.engine.request import POLICIES, Request
from inference_lab.core.engine.specs import (
    AttentionLayers,
    Fabric,
    HardwareSpec,
    History,
    Indexer,
    LinearLayers,
    Link,
    MlaLayers,
    ModelSpec,
    Routing,
    WeightStream,
)

if TYPE_CHECKING:
    from inference_lab.core.engine.scheduler import Scheduler, Step

BLOCK = 4
LAYERS = (
    AttentionLayers(count=2, heads=2, head_dim=4, kv_heads=1, kv_precision="bf16"),
    AttentionLayers(count=2, heads=2, head_dim=4, kv_heads=1, kv_precision="bf16", window=10),
    LinearLayers(count=1, state_bytes=300),
    MlaLayers(
        count=3, latent_dim=8, rope_dim=2, kv_precision="fp8", window=6, history=History(compress_ratio=2)
    ),
    MlaLayers(
        count=1,
        latent_dim=16,
        kv_precision="bf16",
        heads=2,
        qk_head_dim=8,
        v_head_dim=8,
        history=History(
            compress_ratio=4, index_topk=3, indexer=Indexer(heads=1, head_dim=4, kv_precision="fp8")
        ),
    ),
)
HARDWARE = HardwareSpec(
    name="Tiny",
    memory_bandwidth=1e6,
    memory_capacity=10**9,
    flops_bf16=1e9,
    flops_fp8=2e9,
    fabric=Fabric(gpus_per_node=2, scale_up=Link(bandwidth=1e6, latency=1e-5), scale_out=Link(bandwidth=1e5)),
)
ROUTERS = (
    RoundRobin(),
    LeastLoaded(),
    PrefixAffinity(),
    PrefixAffinity(max_load_ratio=1.2),
    KvAware(),
    KvAwareDecode(),
)


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    layers = draw(st.lists(st.sampled_from(LAYERS), min_size=1, max_size=3))
    if all(isinstance(layer, LinearLayers) for layer in layers):
        layers.append(LAYERS[0])
    model = ModelSpec(
        name="Tiny",
        hidden_dim=8,
        max_seq_len=1000,
        weights=(
            WeightStream(precision="fp8", active_params=1000, resident_params=1000),
            WeightStream(
                precision="bf16",
                active_params=200,
                resident_params=1000,
                routing=Routing(routed_experts=8, experts_per_tok=2, moe_layers=1),
            ),
        ),
        layers=tuple(layers),
    )
    block_bytes = KvLayout(model, BLOCK).block_bytes
    dp_attention = draw(st.booleans())
    tp = draw(st.sampled_from((1, 2, 4)))
    scheduler = SchedulerSpec(
        max_num_batched_tokens=draw(st.sampled_from((1, 5, 20, 64, 64, 64))),
        max_num_seqs=draw(st.integers(1, 8)),
        block_size=BLOCK,
        policy=draw(st.sampled_from(sorted(POLICIES))),
        enable_chunked_prefill=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from((0, 0, 3, 20))),
        kv_cache_capacity=draw(st.integers(6, 40)) * block_bytes * (tp if dp_attention else 1),
        enable_preemption_free=draw(st.sampled_from((False, False, False, True))),
        enable_cascade_attention=draw(st.booleans()),
    )
    return Deployment(
        model=model,
        hardware=HARDWARE,
        scheduler=scheduler,
        tp=tp,
        ep=draw(st.sampled_from((1, tp))),
        dp_attention=dp_attention,
        replicas=draw(st.integers(1, 3)),
        router=draw(st.sampled_from(ROUTERS)),
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[float, Request]:
    prompt_tokens = draw(st.integers(0, 24))
    maximum = draw(st.integers(1, 60))
    ids: tuple[Any, ...] = ()
    if draw(st.booleans()):  # a common start of some blocks, then a content of its own
        common = draw(st.integers(0, prompt_tokens // BLOCK))
        own = draw(st.integers(0, 2))
        ids = tuple((index, 0 if index < common else own) for index in range(prompt_tokens // BLOCK))
    request = Request(
        object(),
        prompt_tokens,
        draw(st.sampled_from((1, maximum, maximum, maximum))),
        max_output_tokens=maximum,
        priority=draw(st.integers(-1, 1)),
        block_ids=ids,
    )
    return draw(st.sampled_from((0.0, 0.0, 0.001, 0.01, 0.3))), request


def check_rank(rank: Scheduler, options: SchedulerSpec) -> None:
    """Blocks are conserved and suffice; seats are kept."""
    used_ids: set[Any] = set()
    plain = 0
    for request in rank.running:
        hashed = request.block_ids[: request.content_blocks]
        used_ids.update(hashed)
        plain += request.content_blocks - len(hashed) + request.aux_blocks
        assert request.capacity >= request.computed
    assert rank.pool.free + len(used_ids) + plain == rank.pool.total
    assert rank.pool.free >= 0
    assert len(rank.running) <= options.max_num_seqs
    left = [request.prefill_length - request.computed for request in (*rank.waiting, *rank.running)]
    assert rank.queued_tokens == sum(max(0, tokens) for tokens in left)


def check_step(cluster: Cluster, step: Step, options: SchedulerSpec) -> None:
    tokens: dict[int, int] = {}
    served = [(request, 1) for request in step.decodes] + [
        (chunk.request, chunk.new_tokens) for chunk in step.chunks
    ]
    assert len({id(request) for request, _ in served}) == len(served)
    for request, new_tokens in served:
        assert new_tokens > 0
        tokens[request.worker] = tokens.get(request.worker, 0) + new_tokens
    assert max(tokens.values(), default=0) <= options.max_num_batched_tokens
    assert step.is_idle or step.seconds > 0
    for replica in cluster.replicas:
        for rank in replica.ranks:
            check_rank(rank, options)


def check_empty(cluster: Cluster) -> None:
    for replica in cluster.replicas:
        for rank in replica.ranks:
            assert rank.pool.free == rank.pool.total
            assert rank.request_count == rank.queued_tokens == 0


@given(deployments(), st.lists(requests(), min_size=3, max_size=20), st.data())
def test_every_request_is_served_once_whole_or_cancelled_without_a_trace(
    deployment: Deployment, arrivals: list[tuple[float, Request]], data: st.DataObject
) -> None:
    cluster = Cluster(deployment)
    options = deployment.scheduler
    free_at: dict[int, float] = {}
    came_out: dict[int, int] = {}
    cancelled: set[int] = set()
    cancel_steps = data.draw(st.sets(st.integers(0, 60), max_size=5), label="cancel after steps")
    for number, (replica, step) in enumerate(simulate(cluster, arrivals)):
        assert step.start_s >= free_at.get(replica, 0)
        free_at[replica] = step.end_s
        check_step(cluster, step, options)
        outputs = [(request, 1) for request in step.decodes]
        outputs += [(chunk.request, chunk.output_tokens) for chunk in step.chunks]
        for request, tokens in outputs:
            assert id(request) not in cancelled
            came_out[id(request)] = came_out.get(id(request), 0) + tokens
        inside = [request for _, request in arrivals if request.worker >= 0]
        if number in cancel_steps and inside:
            victim = data.draw(st.sampled_from(inside), label="victim")
            cluster.cancel(victim)
            cancelled.add(id(victim))
            for other in cluster.replicas:
                for rank in other.ranks:
                    assert victim not in rank.running
                    check_rank(rank, options)
    check_empty(cluster)
    for arrival_s, request in arrivals:
        if id(request) in cancelled:
            continue
        assert request.finish_s is not None
        if request.rejected:
            assert came_out.get(id(request), 0) == 0
            assert cluster.blocks_needed(request.prompt_tokens, request.output_tokens) > cluster.rank_blocks
        else:
            assert came_out[id(request)] == request.produced == request.output_tokens
            assert request.first_token_s is not None
            assert arrival_s < request.first_token_s <= request.finish_s


@given(deployments(), st.lists(requests(), max_size=10))
def test_a_run_that_is_repeated_goes_the_same_way(
    deployment: Deployment, arrivals: list[tuple[float, Request]]
) -> None:
    runs = []
    for _ in range(2):
        fresh = [
            (
                arrival_s,
                Request(
                    number,
                    request.prompt_tokens,
                    request.output_tokens,
                    max_output_tokens=request.max_output_tokens,
                    priority=request.priority,
                    block_ids=request.block_ids,
                ),
            )
            for number, (arrival_s, request) in enumerate(arrivals)
        ]
        steps = [
            (replica, step.start_s, step.seconds) for replica, step in simulate(Cluster(deployment), fresh)
        ]
        runs.append((steps, [request.finish_s for _, request in fresh]))
    assert runs[0] == runs[1]
