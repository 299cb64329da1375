"""Settings: which source wins, where a value came from, and what the message says about wrong ones."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Le, Lt, MinLen
from hypothesis import given
from hypothesis import strategies as st

from etude.contracts.errors import CheckpointError, ConfigError
from etude.contracts.field_docs import field_docs
from etude.learning.run_folder import leaves
from etude.learning.settings import read_own
from etude.problems import table
from etude.problems.allocation import SPEC as ALLOCATION
from etude.problems.allocation.problem import AllocationSettings
from etude.problems.table import find_spec, specs
from etude.problems.workflow.office.world import OfficeConfig, WorkflowConfig
from etude.problems.workflow.settings import WorkflowSettings
from etude.settings.sources import Assignment
from etude.settings.tree import Settings, presets, resolve_settings, tree_of
from etude.settings.words import describe


def write(folder: Path, text: str) -> Path:
    path = folder / "etude.yaml"
    path.write_text(text, "utf-8")
    return path


def refusal(**sources: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        resolve_settings(**sources)
    return str(refused.value)


def defaults() -> Any:
    return tree_of(None).model()


def test_without_sources_everything_is_default() -> None:
    resolved = resolve_settings()
    assert resolved.settings == defaults()
    assert set(resolved.origins.values()) == {"default"}


@pytest.mark.parametrize("problem", specs())
def test_a_problem_has_what_all_have_and_its_own_sections(problem: str) -> None:
    settings = resolve_settings(problem).settings
    shared, own = set(Settings.model_fields), set(find_spec(problem).sections)
    assert set(type(settings).model_fields) == shared | own
    assert not shared & own


def test_every_setting_has_an_origin_and_a_line_of_documentation() -> None:
    keys = set(resolve_settings().origins)
    maps = (  # set as a whole
        "experience.allow",
        "experience.policies",
        "loop.methods",
        "release.canary.evidence.guardrails",
        "release.gates.forbidden",
        "release.gates.latency_p99_ms_by_problem",
        "routing.models",
        "routing.upstreams",
    )
    found = {key for key, _ in leaves(defaults().model_dump(mode="json")) if not key.startswith(maps)}
    assert keys == found | set(maps)
    assert [field.key for field in tree_of(None).fields if not field.doc] == []


def test_the_phases_of_a_planner_keep_the_names_of_the_source_document(tmp_path: Path) -> None:
    file = write(tmp_path, "training:\n  phase1_supervised:\n    batch_size: 64\n    lambda_dag: 0.5\n")
    resolved = resolve_settings(
        config=file,
        environ={"ETUDE_TRAINING__PHASE1_SUPERVISED__BATCH_SIZE": "16"},
        assignments=["training.phase1_supervised.learning_rate=1e-3"],
    )
    phase = resolved.settings.training.phase1_supervised
    assert (phase.batch_size, phase.lambda_dag, phase.learning_rate, phase.num_epochs) == (16, 0.5, 1e-3, 50)
    assert resolved.origins["training.phase1_supervised.lambda_dag"] == f"{file}, line 4"
    assert "did you mean 'training.phase1_supervised.batch_size'?" in refusal(assignments=["training.batch_size=3"])
    assert "expected its settings by name" in refusal(assignments=["training.phase1_supervised=3"])
    wrong = refusal(assignments=["training.phase1_supervised.batch_size=0"])
    assert wrong.startswith("training.phase1_supervised.batch_size is 0 (--set training.phase1_supervised.batch_size)")


def test_phase_2_is_set_by_its_flags_and_the_document_s_names(tmp_path: Path) -> None:
    file = write(tmp_path, "training:\n  phase2_rl:\n    alpha: 7\n    epsilon: 0.1\noffice:\n  held_out: 5\n")
    resolved = resolve_settings(config=file, flags={"--episodes": 12, "--shift": "new_tool"})
    phase, office = resolved.settings.training.phase2_rl, resolved.settings.office
    assert (phase.alpha, phase.epsilon, phase.num_episodes, phase.beta) == (7.0, 0.1, 12, 0.1)
    assert (office.held_out, office.shift, office.scenarios) == (5, "new_tool", 16_000)
    assert resolved.origins["training.phase2_rl.alpha"] == f"{file}, line 3"
    assert resolved.origins["training.phase2_rl.num_episodes"] == "--episodes"
    assert resolved.origins["office.shift"] == "--shift"
    assert "one of none, degraded, new_tool, phrasings" in refusal(flags={"--shift": "nonsense"})
    assert "expected one of PPO" in refusal(assignments=["training.phase2_rl.algorithm=DQN"])


def test_what_a_section_inherits_is_documented_where_it_is_defined() -> None:
    docs = {field.key: field.doc for field in tree_of(None).fields}
    assert docs["training.phase2_rl.alpha"] == "Reward for a workflow with every required subtask done."
    assert docs["training.phase2_rl.num_episodes"] == "Workflows to learn from."
    assert docs["office.scenarios"] == "Distinct instructions to learn from."  # not what WorkflowConfig says of it
    assert field_docs(WorkflowConfig)["scenarios"] == "Distinct instructions that episodes are sampled from."
    assert "alpha" not in field_docs(OfficeConfig)


def test_each_source_wins_over_those_before_it(tmp_path: Path) -> None:
    file = write(tmp_path, "ppo:\n  lr: 0.2\n  epochs: 2\n  steps: 2\n  envs: 2\n")
    resolved = resolve_settings(
        preset="document",
        config=file,
        environ={
            "ETUDE_RUN__SEED": "3",
            "ETUDE_PPO__EPOCHS": "3",
            "ETUDE_PPO__STEPS": "3",
            "ETUDE_PPO__ENVS": "3",
            "HOME": "/",
        },
        flags={"--seed": 4, "--agents": None},
        assignments=["ppo.steps=4", "ppo.envs=4", "ppo.envs=5"],
    )
    ppo, origins = resolved.settings.ppo, resolved.origins
    assert (ppo.minibatch, ppo.lr, ppo.epochs, ppo.steps, ppo.envs) == (
        ALLOCATION.presets["document"]["ppo"]["minibatch"],
        0.2,
        3,
        4,
        5,
    )
    assert resolved.settings.run.seed == 4
    assert origins["ppo.gamma"] == "default"
    assert origins["ppo.minibatch"] == "preset document"
    assert origins["ppo.lr"] == f"{file}, line 2"
    assert origins["ppo.epochs"] == "ETUDE_PPO__EPOCHS"
    assert origins["ppo.envs"] == "--set ppo.envs"
    assert origins["run.seed"] == "--seed"


def test_the_document_preset_is_the_documents() -> None:
    settings = resolve_settings("allocation", preset="document").settings
    wanted = {"envs": 4, "steps": 2048, "epochs": 10, "minibatch": 64, "lr": 3e-4}
    assert {name: getattr(settings.ppo, name) for name in wanted} == wanted == ALLOCATION.presets["document"]["ppo"]
    own = settings.own(AllocationSettings)
    assert (own.network.hidden, own.network.activation) == ((256, 256, 128), "relu")


def test_the_document_preset_of_workflows_is_the_documents() -> None:
    resolved = resolve_settings("workflow", preset="document")
    phase1 = resolved.settings.own(WorkflowSettings).training.phase1_supervised
    phase2 = resolved.settings.own(WorkflowSettings).training.phase2_rl
    assert (phase1.batch_size, phase1.learning_rate, phase1.num_epochs, phase1.lambda_dag) == (32, 1e-4, 50, 0.3)
    assert (phase1.train_data_size, phase1.synthetic_augmentations) == (300, 1000)
    assert (phase2.learning_rate, phase2.num_episodes, phase2.max_steps_per_episode) == (3e-5, 1000, 50)
    assert (phase2.gamma, phase2.gae_lambda, phase2.epsilon) == (0.99, 0.95, 0.2)
    assert resolved.settings.ppo == Settings().ppo  # the preset of that name of another problem is not mixed in


def test_a_preset_of_several_problems_is_shown_with_all_its_parts() -> None:
    origins = resolve_settings(preset="document").origins
    assert origins["ppo.minibatch"] == origins["training.phase2_rl.num_episodes"] == "preset document"


def test_the_office_preset_leaves_what_is_not_its_own() -> None:
    resolved = resolve_settings(preset="office", assignments=["planner.width=16"])
    settings, phase = resolved.settings, resolved.settings.training.phase1_supervised
    assert (settings.limits.max_nodes, settings.limits.max_corrections, settings.limits.max_replans) == (10, 3, 1)
    assert (settings.planner.width, settings.planner.dropout, phase.num_epochs, phase.final_epochs) == (16, 0.0, 12, 2)
    assert settings.training.phase2_rl == defaults().training.phase2_rl
    assert settings.training.phase2_rl.world(settings.office, settings.limits).held_out == 1000
    assert resolved.origins["training.phase1_supervised.num_epochs"] == "preset office"


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocation with defaults of `matched` that nothing else has."""
    own = ("allocation.variant", {"matched": {"allocation": {"agents": 7, "slots": 9}}})
    monkeypatch.setitem(table.specs(), "allocation", replace(ALLOCATION, variants=own))


@pytest.mark.usefixtures("variants")
@pytest.mark.parametrize("problem", [None, "allocation"])
@pytest.mark.parametrize("source", ["file", "environ", "flags", "assignments"])
def test_a_variant_brings_its_own_defaults_from_wherever_it_is_named(
    source: str, problem: str | None, tmp_path: Path
) -> None:
    named: dict[str, Any] = {
        "file": {"config": write(tmp_path, "allocation: {variant: matched}")},
        "environ": {"environ": {"ETUDE_ALLOCATION__VARIANT": "matched"}},
        "flags": {"flags": {"--variant": "matched"}},
        "assignments": {"assignments": ["allocation.variant=matched"]},
    }[source]
    resolved = resolve_settings(problem, **named)
    assert resolved.settings.allocation.agents == 7
    assert resolved.origins["allocation.agents"] == "default for matched"
    if source != "flags":
        assert resolve_settings(problem, **named, flags={"--agents": 3}).settings.allocation.agents == 3


@pytest.mark.parametrize("variant", ["document", "matched"])
def test_the_defaults_of_every_variant_are_valid(variant: str) -> None:
    resolved = resolve_settings("allocation", flags={"--variant": variant}).settings.own(AllocationSettings)
    assert resolved.allocation.variant == variant
    assert ALLOCATION.variants is not None
    assert set(ALLOCATION.variants[1]) <= {"document", "matched"}


@pytest.mark.parametrize("preset", presets())
def test_every_preset_is_valid_where_it_is_known(preset: str) -> None:
    resolve_settings(preset=preset)
    owners = [name for name, spec in specs().items() if preset in spec.presets]
    assert owners
    for problem in specs():
        if problem in owners:
            resolve_settings(problem, preset=preset)
        else:
            assert f"the preset is {preset!r}" in refusal(problem=problem, preset=preset)


def test_the_sections_of_other_problems_are_left_alone(tmp_path: Path) -> None:
    """One etude.yaml serves every problem, and a flag of none of them is still an error."""
    file = write(tmp_path, "office: {scenarios: -1}\nallocation: {agents: 3}\n")
    environ = {"ETUDE_TRAINING__PHASE2_RL__GAMA": "1"}
    resolved = resolve_settings("allocation", config=file, environ=environ)
    assert resolved.settings.own(AllocationSettings).allocation.agents == 3
    assert "office.scenarios is -1" in refusal(problem="workflow", config=file)
    assert "'training.phase2_rl.gamma'" in refusal(problem="workflow", environ=environ)
    assert "'training.phase2_rl.gamma'" in refusal(environ=environ)


@pytest.mark.parametrize("problem", [None, *specs()])
def test_a_misspelt_section_is_an_error_for_every_problem(problem: str | None, tmp_path: Path) -> None:
    for text in ("offise: {scenarios: 3}\n", "alocation:\n", "trainin: {phase1_supervised: {beam: 1}}\n"):
        message = refusal(problem=problem, config=write(tmp_path, text))
        assert "unknown setting" in message
        assert "etude.yaml, line 1" in message
        assert "did you mean" in message


@pytest.mark.parametrize(
    "key", ["office.scenarios", "office", "training.phase1_supervised.beam", "training.phase1_supervised"]
)
def test_what_someone_sets_for_this_run_must_be_of_its_problem(key: str) -> None:
    message = refusal(problem="allocation", assignments=[f"{key}=3"])
    assert f"'{key}' (--set {key})" in message
    assert "workflow" in message


def test_the_sections_a_spec_names_are_those_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_spec(**changed: Any) -> str:
        tree_of.cache_clear()
        monkeypatch.setitem(table.specs(), "allocation", replace(ALLOCATION, **changed))
        return refusal(problem="allocation")

    message = with_spec(sections=("allocation",))
    assert "names the sections ('allocation',), and has ['allocation', 'network']" in message
    tree_of.cache_clear()


def test_numbers_and_lists_are_read_as_people_write_them() -> None:
    texts = ["ppo.lr=1e-3", "run.max_steps=1e6", "run.seed=1_000", "ppo.gamma=1", "network.hidden=[8, 4]"]
    settings = resolve_settings(assignments=[*texts, "ppo.clip_coef=null", "run.trackers=[tensorboard]"]).settings
    assert (settings.ppo.lr, settings.run.max_steps, settings.run.seed) == (0.001, 1_000_000, 1000)
    assert isinstance(settings.run.max_steps, int)
    assert (settings.ppo.gamma, settings.network.hidden, settings.ppo.clip_coef) == (1.0, (8, 4), None)
    assert settings.run.trackers == ("tensorboard",)


def test_a_section_may_be_given_whole_or_left_empty(tmp_path: Path) -> None:
    file = write(tmp_path, "ppo:\n  # lr: 1\nrun: {seed: 3}\n")
    environ = {"ETUDE_NETWORK": "{shared: true}"}
    settings = resolve_settings(config=file, environ=environ, assignments=["ppo={envs: 8}"]).settings
    assert (settings.run.seed, settings.network.shared, settings.ppo.envs) == (3, True, 8)


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert resolve_settings(config=write(tmp_path, "# nothing yet\n")).settings == defaults()


def test_a_curriculum_is_a_list_of_stages() -> None:
    stages = resolve_settings(environ={"ETUDE_CURRICULUM": "[{size: {agents: 2}, share: 0.3}]"}).settings.curriculum
    assert [(dict(stage.size), stage.share) for stage in stages] == [({"agents": 2}, 0.3)]


UNKNOWN = [
    ({"assignments": ["ppo.lrr=1"]}, ["'ppo.lrr'", "--set ppo.lrr", "'ppo.lr'"]),
    ({"assignments": ["lr=1"]}, ["'lr'", "did you mean 'ppo.lr'"]),
    ({"assignments": ["pp.lr=1"]}, ["did you mean 'ppo.lr'"]),
    ({"assignments": ["run.agents=1"]}, ["did you mean 'allocation.agents'"]),
    ({"environ": {"ETUDE_PPO__GAMA": "1"}}, ["ETUDE_PPO__GAMA", "'ppo.gamma'"]),
    ({"environ": {"ETUDE_NETWORKS": "{}"}}, ["'networks'", "did you mean 'network'"]),
    ({"environ": {"ETUDE_NETWORKS": ""}}, ["'networks'", "did you mean 'network'"]),
    ({"environ": {"ETUDE_NETWORKS": "1"}}, ["ETUDE_NETWORKS", "'network'"]),
    ({"assignments": ["qwertz.uiop=1"]}, ["'qwertz.uiop'", "etude config explain"]),
    ({"assignments": ["ppo=1"]}, ["ppo is 1", "ppo.envs"]),
    ({"assignments": ["curriculum.0.share=1"]}, ["curriculum.0.share", "list of stages"]),
    (
        {"assignments": ["curriculum=[{size: {agents: 2}, shar: 1}]"]},
        ["curriculum[0].shar is unknown", "size and share"],
    ),
    ({"assignments": ["curriculum=[{share: 1}]"]}, ["curriculum[0].size is missing"]),
    ({"preset": "doc"}, ["preset", "'doc'", "'document'"]),
    ({"assignments": ["ppo.lr"]}, ["--set 'ppo.lr'", "key=value"]),
]


@pytest.mark.parametrize(("sources", "words"), UNKNOWN)
def test_an_unknown_key_is_refused_with_its_place_and_a_guess(sources: dict[str, Any], words: list[str]) -> None:
    message = refusal(**sources)
    assert [word for word in words if word not in message] == []


WRONG = [
    ("ppo.lr=abc", "ppo.lr is 'abc'", "a number above 0"),
    ("ppo.lr=0", "ppo.lr is 0", "a number above 0"),
    ("ppo.lr='0.1'", "ppo.lr is '0.1'", "a number"),
    ("ppo.envs=true", "ppo.envs is True", "an integer of 1 or more"),
    ("ppo.envs=1.5", "ppo.envs is 1.5", "an integer"),
    ("ppo.envs=2024-01-01", "ppo.envs is '2024-01-01'", "an integer"),
    ("ppo.envs=null", "ppo.envs is None", "an integer"),
    ("ppo.envs={a: 1}", "ppo.envs is {'a': 1}", "an integer"),
    ("ppo.compile=1", "ppo.compile is 1", "true or false"),
    ("allocation.agents=-1", "allocation.agents is -1", "an integer from 2 to 64"),
    ("allocation.variant=foo", "allocation.variant is 'foo'", "one of document, matched"),
    ("network.hidden=[]", "network.hidden is []", "a list of integers above 0, not empty"),
    ("network.hidden=[4, 0]", "network.hidden[1] is 0", "a list of integers above 0"),
    ("network.dropout=1", "network.dropout is 1", "a number of 0 or more and below 1"),
    ("run.target_return=.nan", "run.target_return is nan", "a number or null"),
    ("run.trackers=[foo]", "run.trackers[0] is 'foo'", "each one of tensorboard, wandb, mlflow"),
    ("curriculum=[{size: {agents: true}, share: 1}]", "curriculum[0].size.agents is True", "stages"),
]


@pytest.mark.parametrize(("text", "found", "expected"), WRONG)
def test_a_wrong_value_is_refused_with_what_was_expected(text: str, found: str, expected: str) -> None:
    message = refusal(assignments=[text])
    key = text.partition("=")[0]
    assert found in message
    assert f"--set {key}" in message
    assert f"expected {expected}" in message or expected in message.partition("expected ")[2]
    assert f"etude config explain {key}" in message


def test_every_wrong_value_is_reported_at_once() -> None:
    message = refusal(assignments=["ppo.lr=-1", "ppo.envs=0", "network.hidden=[0, 0]"])
    assert [line.split()[0] for line in message.splitlines()] == ["ppo.envs", "ppo.lr", "network.hidden[0]"]


FILES = [
    ("ppo:\n  lr: [1\nrun:\n", "etude.yaml:3: cannot be read as YAML"),
    ("ppo:\n  lr: 1\n  lr: 2\n", "etude.yaml:3: ppo.lr: stands there twice"),
    ("ppo: {}\nppo: {}\n", "etude.yaml:2: ppo: stands there twice"),
    ("- 1\n", "sections"),
    ("ppo:\n\tlr: 1\n", "etude.yaml:2: "),
    ("ppo:\n  lr: &a 1\n  envs: *b\n", "etude.yaml:3: "),
    ("run: !!python/object:os.system {}\n", "etude.yaml:1: run: found the tag"),
    ("ppo:\n\n  lr: x\n", "line 3"),
]


@pytest.mark.parametrize(("text", "place"), FILES)
def test_a_bad_file_is_refused_with_its_name_and_line(text: str, place: str, tmp_path: Path) -> None:
    message = refusal(config=write(tmp_path, text))
    assert "etude.yaml" in message
    assert place in message


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    assert "there is no such file" in refusal(config=tmp_path / "nope.yaml")
    assert "cannot be read" in refusal(config=tmp_path)
    (tmp_path / "etude.yaml").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in refusal(config=tmp_path / "etude.yaml")


def test_a_variable_that_is_not_yaml_is_refused() -> None:
    assert "ETUDE_PPO__LR is '[1'" in refusal(environ={"ETUDE_PPO__LR": "[1"})


def test_variables_that_are_no_settings_are_let_be() -> None:
    assert resolve_settings(environ={"ETUDE_DEBUG": "1", "PATH": "x", "ETUDEX": "y"}).settings == defaults()


def test_settings_survive_the_run_folder() -> None:
    texts = ["allocation.agents=3", "network.hidden=[3, 2]", "ppo.clip_coef=null"]
    settings = resolve_settings("allocation", assignments=texts).settings
    kept = json.loads(json.dumps(settings.sections("allocation", "network", "ppo")))
    assert kept["ppo"]["clip_coef"] is None
    assert read_own(AllocationSettings, kept, source="x") == settings.own(AllocationSettings)
    texts = ["planner.width=16", "training.phase2_rl.alpha=3", "office.shift=degraded"]
    settings = resolve_settings("workflow", assignments=texts).settings
    kept = json.loads(json.dumps(settings.sections(*find_spec("workflow").sections)))
    assert read_own(WorkflowSettings, kept, source="x") == settings.own(WorkflowSettings)


def test_settings_of_another_version_are_refused_with_their_file() -> None:
    kept = Settings().sections("ppo")
    with pytest.raises(CheckpointError, match=r"runs/a/best.*not those of this version.*train it again"):
        read_own(AllocationSettings, kept, source=Path("runs/a/best"))
    kept = resolve_settings("allocation").settings.sections("allocation", "network")
    kept["allocation"]["agents"] = "many"
    with pytest.raises(CheckpointError, match=r"runs/a/best.*agents"):
        read_own(AllocationSettings, kept, source=Path("runs/a/best"))


DESCRIPTIONS: list[tuple[Any, str]] = [
    (int, "an integer"),
    (Annotated[int, Ge(2), Le(64)], "an integer from 2 to 64"),
    (Annotated[float, Ge(0), Lt(1)], "a number of 0 or more and below 1"),
    (Annotated[float, Gt(0)] | None, "a number above 0 or null"),
    (bool, "true or false"),
    (Literal["a", "b"], "one of a, b"),
    (Annotated[tuple[Annotated[int, Gt(0)], ...], MinLen(1)], "a list of integers above 0, not empty"),
    (Mapping[str, int], "names with integers"),
]


@pytest.mark.parametrize(("annotation", "words"), DESCRIPTIONS)
def test_types_are_described_in_words(annotation: Any, words: str) -> None:
    assert describe(annotation) == words


def test_every_type_in_the_tree_has_words() -> None:
    strange = [field.type for field in tree_of(None).fields if any(sign in field.type for sign in "[]<>")]
    assert strange == []


SECTIONS: dict[str, Any] = {
    name: info.default for name, info in tree_of(None).model.model_fields.items() if is_dataclass(info.default)
}
for outer in ("training", "from_logs"):  # sections of sections
    whole = SECTIONS.pop(outer)
    SECTIONS |= {f"{outer}.{f.name}": getattr(whole, f.name) for f in fields(whole)}


@given(section=st.sampled_from(sorted(SECTIONS)), data=st.data())
def test_whatever_is_given_is_either_taken_as_it_is_or_refused(section: str, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([f.name for f in fields(SECTIONS[section])]))
    value = data.draw(
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats()
        | st.text(max_size=5)
        | st.lists(st.integers(), max_size=3)
    )
    try:
        taken = tree_of(None).build([Assignment(f"{section}.{name}", value, "x")]).settings
    except ConfigError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert f"{section}.{name}" in refused
        return
    own = attrgetter(section)(taken)
    result = getattr(own, name)
    assert not (isinstance(result, float) and not math.isfinite(result))
    assert (list(result) if isinstance(result, tuple) else result) == value
    others = asdict(own) | {name: None}
    assert others == asdict(SECTIONS[section]) | {name: None}
