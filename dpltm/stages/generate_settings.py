"""Options of phase 1, settled: what the tickets will depend on, and the schedule with every default filled in."""

from __future__ import annotations

from dataclasses import replace

import torch

from dpltm.errors import InputError
from dpltm.networks import ModelSpec
from dpltm.options.generate import GenerateOptions
from dpltm.options.parsing import parse_numbers
from dpltm.options.sections import check_choices
from dpltm.privacy.events import ProvenanceKind
from dpltm.pruning import CRITERIA, DATA_FREE, DP_CRITERIA
from dpltm.pruning.generation import GenerationConfig, check_without_data, make_schedule, pruning_rates
from dpltm.records import Dataset
from dpltm.registry import listed
from dpltm.stages.checks import check_count, check_epsilon
from dpltm.stages.columns import input_groups


def check_options(options: GenerateOptions) -> ProvenanceKind:
    """What the tickets will depend on; options that are out of range, or contradict each other, are refused."""
    check_choices(options)
    provenance = _provenance(options)
    if options.epsilon is not None and options.criterion not in DP_CRITERIA:
        raise InputError(
            f"`epsilon`: only for `criterion` {listed(DP_CRITERIA, 'and')}; {options.criterion} spends none"
        )
    if options.epsilon is None and options.criterion in DP_CRITERIA:
        raise InputError(f"`epsilon` is missing: what {options.criterion} may spend on these records, such as 0.1")
    check_epsilon("epsilon", options.epsilon)
    if options.reveal and provenance != "private":
        raise InputError(f"`reveal`: only for private tickets; those of provenance {provenance} withhold nothing")
    unused = [name for name in ("iterations", "batch_size", "lr") if getattr(options, name) is not None]
    if provenance == "data-free" and unused:
        raise InputError(
            f"`{unused[0]}`: nothing is trained for data-free tickets; leave it out, or say `provenance` public"
        )
    if provenance not in ("private", "dp") and not 0 < options.delta < 1:  # of these, the number of records has a say
        raise InputError(f"`delta`: {options.delta:g} is not between 0 and 1")
    config = _draft(options, None)
    if provenance == "data-free":
        check_without_data(config)
    return provenance


def check_schedule(options: GenerateOptions, spec: ModelSpec) -> None:
    """Raises InputError for rounds or rates that this network cannot be pruned by."""
    make_schedule(spec, _draft(options, None))


def _provenance(options: GenerateOptions) -> ProvenanceKind:
    """What the tickets will depend on: as the user says, as far as the criterion leaves it open."""
    said = options.provenance
    if options.criterion in DP_CRITERIA:
        if said not in (None, "dp"):
            raise InputError(f"`provenance`: {options.criterion} makes tickets under DP; say dp, or leave it out")
        return "dp"
    if said == "dp":
        takers = listed(DP_CRITERIA, "and")
        raise InputError(
            f"`provenance`: {options.criterion} spends nothing and is not DP; dp is for `criterion` {takers}"
        )
    if said is None and options.criterion in DATA_FREE:
        return "data-free"
    if said is None:
        raise InputError(
            "`provenance` is missing: say public if these records are public, or private if they are not (then nothing can"
            " be certified for them)"
        )
    if said == "data-free" and options.criterion not in DATA_FREE:
        raise InputError(
            f"`provenance`: {options.criterion} looks at weights trained on the records, so it is not data-free; take"
            f" `criterion` {', '.join(DATA_FREE)}"
        )
    return said  # type: ignore[return-value]


def settle(
    options: GenerateOptions, spec: ModelSpec, dataset: Dataset, provenance: ProvenanceKind
) -> GenerationConfig:
    """The settings of generation, with every default filled in.

    Args:
        options: as they were given.
        spec: the network.
        dataset: the records.
        provenance: what the tickets will depend on.

    Raises:
        InputError: rounds or rates that the network cannot be pruned by, or a batch of more records than there are.
    """
    config = _draft(options, dataset.records)
    batch = config.batch_size
    make_schedule(spec, config)
    # Without a mechanism batches are of exactly so many records, and there may be fewer than the public number.
    most = dataset.records if provenance == "dp" else min(dataset.records, len(dataset.train))
    made_up = CRITERIA[options.criterion].mechanism == "moments"  # as many records as a batch takes
    if provenance in ("public", "private", "dp") and not made_up and batch > most:
        many = f"the {most} records of" if most == dataset.records else "there are records in"
        raise InputError(f"`batch_size`: {batch} is more than {many} {dataset.name}")
    threads = config.threads or torch.get_num_threads()
    return replace(
        config, prune=tuple(pruning_rates(spec, config).values()), threads=threads, groups=input_groups(dataset)
    )


def _draft(options: GenerateOptions, records: int | None) -> GenerationConfig:
    """The settings, with every default that goes by the number of records; by any number where that is not known."""
    criterion = CRITERIA[options.criterion]
    training = criterion.training
    if records is None:
        batch, iterations = options.batch_size or training.batch_size, options.iterations or training.iterations
        if training.epochs is not None:  # no rewind is too late yet
            iterations = options.iterations or max(iterations, options.rewind + 1)
    else:
        batch = options.batch_size or training.batch_of(records)
        iterations = options.iterations or training.iterations_of(records, batch)
    check_count("batch_size", options.batch_size)
    check_count("iterations", options.iterations)
    return GenerationConfig(
        rounds=options.rounds,
        prune=None if options.prune is None else parse_numbers("prune", options.prune),
        iterations=iterations,
        batch_size=batch,
        lr=options.lr if options.lr is not None else training.lr,
        seed=options.seed,
        threads=options.threads,
        criterion=criterion.name if criterion.mechanism is None else "magnitude",
        scope=options.scope or criterion.scope,  # type: ignore[arg-type]
        rewind=options.rewind,
    )
