"""FedEMoE's shared expert: spectra, the tree, and how it grows and shrinks."""

import pytest
import torch
from support import assert_same_bits

from fedexperts.methods import Round, State, select
from fedexperts.methods.evolution import COUNTS, LOG, THRESHOLDS, beginning, changes, evolve
from fedexperts.methods.fedemoe import FedEMoE
from fedexperts.methods.growth import PART, Tree, effective_rank, expand, expert, health, shrink, tail_energy
from fedexperts.models import ElasticExpert

NOW = Round(20, 100, seed=0, clients=6)
SMALL = {"width": 12, "hidden": 6}


def a_tree(limit: int = 9, depth: int = 2, inputs: int = 8) -> tuple[ElasticExpert, State]:
    torch.manual_seed(3)
    made = ElasticExpert(inputs, 5, 4, branches=3, top=2, limit=limit, depth=depth).double().eval()
    return made, {f"{PART}.{name}": tensor.clone() for name, tensor in made.state_dict().items()}


def with_state(made: ElasticExpert, state: State) -> ElasticExpert:
    made.load_state_dict({name.removeprefix(f"{PART}."): tensor for name, tensor in select(state, {PART}).items()})
    return made


def test_effective_rank_and_tail_energy_of_known_spectra() -> None:
    spectrum = torch.tensor([3.0, 2.0, 1.0, 1.0, 0.0])  # squares 9, 4, 1, 1, 0: shares 9/15, 13/15, 14/15, 1, 1
    for energy, components in ((0.5, 1), (0.6, 1), (0.61, 2), (0.9, 3), (0.99, 4)):
        assert effective_rank(spectrum, energy) == pytest.approx(components / 5)
    for share, left in ((0.2, 6 / 15), (0.4, 2 / 15), (0.6, 1 / 15), (0.8, 0)):
        assert tail_energy(spectrum, share) == pytest.approx(left)


def test_the_health_of_a_sub_expert_is_the_mean_over_its_matrices() -> None:
    _, state = a_tree()
    state[f"{PART}.experts.0.0.weight"] = torch.diag_embed(torch.tensor([2.0, 0, 0, 0])).repeat(1, 2).double()
    state[f"{PART}.experts.0.2.weight"] = torch.eye(5, 4).double()
    found = health(state, [0], energy=0.99, share=0.5)[0]
    assert found.rank == pytest.approx((1 / 4 + 1) / 2)
    assert found.tail == pytest.approx((0 + 1 / 2) / 2)


def test_a_leafs_weight_is_the_product_along_its_path() -> None:
    made, state = a_tree()
    with_state(made, expand(state, 1, NOW))
    x = torch.randn(20, 8, dtype=torch.float64)
    root, child = (torch.softmax(made.routers[r](x), 1) for r in (0, 1))
    weights = made.weights(x)
    for sample in range(20):
        expected = torch.zeros(9, dtype=torch.float64)
        top = [share[sample].topk(2).indices.tolist() for share in (root, child)]
        of = [share[sample] / share[sample][best].sum() for share, best in zip((root, child), top, strict=True)]
        family = {0: 3, 1: 1, 2: 4}  # children of the new mixture → leaves
        for turn in top[0]:
            if turn != 1:
                expected[turn] = of[0][turn]
            else:
                for inner in top[1]:
                    expected[family[inner]] = of[0][1] * of[1][inner]
        torch.testing.assert_close(weights[sample], expected)
    torch.testing.assert_close(weights.sum(1), torch.ones(20, dtype=torch.float64))
    outputs = torch.stack([made.experts.get_submodule(str(leaf))(x) for leaf in range(9)], dim=1)
    torch.testing.assert_close(made(x), (weights[..., None] * outputs).sum(1))


def test_expansion_keeps_what_was_learned_and_changes_the_output_by_no_more_than_the_new_siblings_say() -> None:
    made, state = a_tree()
    x = torch.randn(50, 8, dtype=torch.float64)
    before, old = made(x).clone(), made.weights(x)[:, 2].clone()
    grown = expand(state, 2, NOW)
    assert_same_bits({n: grown[n] for n in expert(state, 2)}, expert(state, 2))
    assert torch.equal(grown[f"{PART}.routers.1.weight"], state[f"{PART}.routers.0.weight"]), "the parent's router"
    assert Tree.of(grown).paths == {
        0: ((0, 0),),
        1: ((0, 1),),
        3: ((0, 2), (1, 0)),
        4: ((0, 2), (1, 1)),
        2: ((0, 2), (1, 2)),
    }
    with_state(made, grown)
    after, weights = made(x), made.weights(x)
    torch.testing.assert_close(weights[:, [2, 3, 4]].sum(1), old)  # nobody else loses or gains
    said = {leaf: made.experts.get_submodule(str(leaf))(x) for leaf in (2, 3, 4)}
    moved = sum(weights[:, leaf, None] * (said[leaf] - said[2]) for leaf in (3, 4))
    torch.testing.assert_close(after - before, moved)
    unused = old == 0
    assert torch.equal(after[unused], before[unused])


def test_shrinkage_is_the_sum_weighted_by_use_at_the_old_index() -> None:
    _, state = a_tree()
    grown = expand(state, 2, NOW)
    counts = torch.tensor([5.0, 5, 2, 6, 0, 0, 0, 0, 0])
    small = shrink(grown, 1, counts)
    assert Tree.of(small).paths == Tree.of(state).paths
    for name, tensor in expert(small, 2).items():
        inner = name.removeprefix(f"{PART}.experts.2.")
        each = [grown[f"{PART}.experts.{leaf}.{inner}"] for leaf in (3, 4, 2)]
        torch.testing.assert_close(tensor, 0.75 * each[0] + 0 * each[1] + 0.25 * each[2])
    assert_same_bits(expert(small, 0), expert(grown, 0))


def test_trees_grow_to_any_depth_and_shrink_back_to_where_they_began() -> None:
    _, state = a_tree(limit=27, depth=4)
    sizes = []
    for _ in range(3):
        leaf = max(Tree.of(state).paths, key=lambda leaf: len(Tree.of(state).paths[leaf]))
        state = expand(state, leaf, NOW)
        sizes.append(len(Tree.of(state).paths))
    assert sizes == [5, 7, 9]
    assert max(len(path) for path in Tree.of(state).paths.values()) == 4
    while inner := [r for r in Tree.of(state).used_routers if Tree.of(state).family(r)]:
        state = shrink(state, inner[0], torch.ones(27))
    assert Tree.of(state).paths == {leaf: ((0, leaf),) for leaf in range(3)}


def test_a_tree_at_its_limit_stops_growing() -> None:
    _, state = a_tree(limit=7, depth=2)
    for leaf in (0, 1):
        assert Tree.of(state).can_expand(leaf)
        state = expand(state, leaf, NOW)
    assert not any(Tree.of(state).can_expand(leaf) for leaf in range(7))
    _, shallow = a_tree(limit=27, depth=1)
    assert not Tree.of(shallow).can_expand(0)


def test_as_many_are_chosen_where_scores_are_equal() -> None:
    made, _ = a_tree()
    weights = made.weights(torch.zeros(4, 8, dtype=torch.float64))  # routers have no bias: all scores are equal
    assert (weights > 0).sum(1).tolist() == [2] * 4
    torch.testing.assert_close(weights.sum(1), torch.ones(4, dtype=torch.float64))


def test_a_sub_expert_works_for_those_who_use_it_only() -> None:
    made, state = a_tree()
    seen: list[int] = []
    for leaf in made.experts.children():
        leaf.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    x = torch.randn(50, 8, dtype=torch.float64)
    made(x)
    assert sum(seen) == 2 * 50, "there is room for four, of which a tree of three uses two"
    with_state(made, expand(expand(expand(state, 0, NOW), 1, NOW), 2, NOW))
    seen.clear()
    made(x)
    assert sum(seen) == 4 * 50


def evolved(state: State, number: int = 20, **rules: float) -> tuple[State, list[list[float]]]:
    after = evolve(state, FedEMoE(options=SMALL | rules).options, Round(number, 100, seed=0, clients=6))
    return after, after[LOG].tolist()


def looked_at(state: State, **more: object) -> State:
    return state | {COUNTS: torch.ones(9, dtype=torch.float64)} | beginning(9, 0.8) | more


def test_a_rank_is_held_against_the_threshold_that_has_moved() -> None:
    _, state = a_tree()
    rank = health(state, [1], 0.99, 0.9)[1].rank
    thresholds = torch.full((9,), 2.0, dtype=torch.float64)
    thresholds[1] = rank - 0.01
    after, _ = evolved(looked_at(state) | {THRESHOLDS: thresholds}, threshold=0.1, tail_limit=1.0)
    assert sorted(Tree.of(after).paths) == [0, 1, 2, 3, 4], "one expands: not all that are above v_0"
    assert len(Tree.of(after).paths[1]) == 2
    assert after[THRESHOLDS][1].item() == pytest.approx(0.07 * rank + 0.93 * (rank - 0.01))
    assert after[THRESHOLDS][3:5].tolist() == [0.1, 0.1], "new ones begin with v_0"
    siblings = [after[f"{PART}.experts.{leaf}.0.weight"] for leaf in (1, 3, 4)]
    assert not torch.equal(siblings[1], siblings[2])
    assert not torch.equal(siblings[0], siblings[1])


def test_where_there_is_no_room_for_all_those_expand_that_are_furthest_above() -> None:
    _, state = a_tree(limit=7)
    ranks = [health(state, [leaf], 0.99, 0.9)[leaf].rank for leaf in range(3)]
    far = [0.01, 0.3, 0.2, *[0.0] * 4]
    thresholds = torch.tensor([*ranks, *[0.8] * 4], dtype=torch.float64) - torch.tensor(far, dtype=torch.float64)
    state |= {COUNTS: torch.ones(7, dtype=torch.float64)} | beginning(7, 0.8) | {THRESHOLDS: thresholds}
    after, rows = evolved(state, tail_limit=1.0, smoothing=0.0)
    assert [len(Tree.of(after).paths[leaf]) for leaf in (0, 1, 2)] == [1, 2, 2]
    assert [row[1] for row in rows if row[-1]] == [1, 2], "in the order in which they did"
    rules = FedEMoE(options=SMALL | {"limit": 7}).options
    assert changes(rows, Tree.of(after), rules)[-1].tree == Tree.of(after)


def test_new_sub_experts_begin_as_linear_layers_do() -> None:
    made = ElasticExpert(640, 640, 640)  # in, between and out alike: no two of the tensors may be
    state = {f"{PART}.{name}": tensor for name, tensor in made.state_dict().items()}
    grown = expand(state, 0, NOW)
    for leaf in (3, 4):
        first, second = (
            torch.cat([grown[f"{PART}.experts.{leaf}.{layer}.{kind}"].flatten() for kind in ("weight", "bias")])
            for layer in (0, 2)
        )
        for drawn in (first, second):
            assert 0.99 / 640**0.5 < drawn.abs().max() <= 1 / 640**0.5
        assert (first[:-640] * second[:-640]).mean().abs() < 0.01 / 640
        assert not torch.equal(first[-640:], second[-640:])
    tall = ElasticExpert(900, 5, 4)
    small = expand({f"{PART}.{name}": tensor for name, tensor in tall.state_dict().items()}, 0, NOW)
    for layer, inputs in ((0, 900), (2, 4)):
        biases = torch.cat([small[f"{PART}.experts.{leaf}.{layer}.bias"] for leaf in (3, 4)])
        assert 0.3 * inputs**-0.5 < biases.abs().max() <= inputs**-0.5, "as many inputs as its weights have"
    renamed = dict(reversed(state.items()))
    assert_same_bits(expert(expand(renamed, 0, NOW), 3), expert(grown, 3))


def test_a_mixture_shrinks_by_how_often_each_was_used() -> None:
    _, state = a_tree()
    grown = expand(state, 2, NOW)
    counts = torch.tensor([5.0, 5, 2, 6, 0, 0, 0, 0, 0])
    after, _ = evolved(looked_at(grown, **{COUNTS: counts}), tail_limit=0.0, tail_share=0.5, threshold=2.0, smoothing=0)
    for name, tensor in expert(after, 2).items():
        inner = name.removeprefix(f"{PART}.experts.2.")
        each = [grown[f"{PART}.experts.{leaf}.{inner}"] for leaf in (3, 2)]
        torch.testing.assert_close(tensor, 0.75 * each[0] + 0.25 * each[1])


def test_a_matrix_of_zeros_has_no_tail() -> None:
    assert tail_energy(torch.zeros(5), 0.5) == 0
