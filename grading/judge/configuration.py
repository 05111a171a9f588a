"""Judges as a person writes them in a matrix file, and as the manifest registers them.

What decides a verdict is the *configuration*, and its hash is what a judgment, a cached vote and a calibration record
are keyed by. How it is reached and what it may spend stands beside it, in the manifest too.
"""

import re
from decimal import Decimal
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from grading.judge import CRITERION, POLICY_VERSIONS, Criterion
from grading.judge.rubric import DEFAULT, RubricReference, UnknownRubric, reference, rubric
from simulator.canonical import canonical_hash
from simulator.ledger import Sha256
from simulator.model import WireModel
from simulator.source import source_hash

OPENAI_URL = "https://api.openai.com/v1"

_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,12})?")


def _decimal(text: str) -> str:
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"'{text[:60]}' is no decimal such as 0.15")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _temperature(text: str) -> str:
    if not 0 <= Decimal(text) <= 2:
        raise ValueError("must be from 0 to 2")
    return text


def _rubric(name: str) -> str:
    try:
        rubric(name)
    except UnknownRubric as error:
        raise ValueError(str(error)) from None
    return name


def _address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is no address such as http://localhost:8000/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("must be a plain address: a key belongs into an environment variable, see api_key_env")
    return text.rstrip("/")


def _environment_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", text):
        raise ValueError("is no name of an environment variable: give the name alone, keys are never stored")
    return text


Dollars = Annotated[str, AfterValidator(_decimal), Field(json_schema_extra={"type": ["number", "string"]})]
"""US dollars as an exact decimal."""
Temperature = Annotated[Dollars, AfterValidator(_temperature)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=300)]
Address = Annotated[str, AfterValidator(_address)]
KeyName = Annotated[str, AfterValidator(_environment_name)]


class Prices(WireModel):
    """What the provider charges. Discounts are not known, so a cost is an upper one."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    input: Dollars = Field(examples=[0.15])
    """For a million input tokens."""
    output: Dollars = Field(examples=[0.6])
    """For a million output tokens."""


class Budget(WireModel):
    """The most that judging one matrix may use; a call that could go beyond it is not made."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    dollars: Dollars | None = None
    """In all; needs prices."""
    tokens: Annotated[int, Field(ge=1, le=2**53 - 1)] | None = None
    """Input and output, in all."""

    @model_validator(mode="after")
    def _limits_something(self) -> "Budget":
        if self.dollars is None and self.tokens is None:
            raise ValueError("limits nothing: write dollars, tokens, or leave the budget out")
        return self


class OpenAIDecides(WireModel):
    """What decides the verdicts of a model behind an OpenAI-compatible API."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    model: ModelName = Field(examples=["gpt-4o-mini-2024-07-18"])
    """The model to ask for; best one that is pinned to a date."""
    returned_model: ModelName | None = None
    """The model that the provider says answered, where that is another name; checked after every call."""
    base_url: Address = OPENAI_URL
    """Where the API is."""
    temperature: Temperature = "0"
    """0 unless you have a reason."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Vote n is asked for with seed + n."""
    votes: Annotated[int, Field(ge=1, le=25)] = 1
    """Answers to each request: more than half must agree, else the judge abstains."""
    output_tokens: Annotated[int, Field(ge=16, le=100_000)] = 512
    """The longest answer; one that is cut off is an abstention."""
    longest_request: Annotated[int, Field(ge=1_000, le=10_000_000)] = 100_000
    """Bytes of evidence; a larger one is not sent and not shortened, the judge abstains."""
    limit_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    """How the API calls the limit of output tokens; older servers know max_tokens alone."""


class JudgeConnection(WireModel):
    """How a judge is reached and what it may use: no part of what decides a verdict."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    api_key_env: KeyName | None = "OPENAI_API_KEY"
    """The environment variable that holds the key; null where the server asks for none."""
    timeout_seconds: Annotated[int, Field(ge=1, le=3_600)] = 60
    """How long one try may be silent."""
    retries: Annotated[int, Field(ge=0, le=20)] = 4
    """Further tries after 429, 5xx and silence; after the last one the judgment is pending."""
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4
    """Calls at the same time, over the whole matrix."""
    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Over the whole matrix, tries that fail included."""
    prices: Prices | None = None
    """Without them every cost is unknown."""
    budget: Budget | None = None
    """What judging this matrix may use."""

    @model_validator(mode="after")
    def _has_prices_for_its_budget(self) -> "JudgeConnection":
        if self.budget is not None and self.budget.dollars is not None and self.prices is None:
            raise ValueError("budget.dollars: dollars can only be counted with prices: add them, or limit tokens")
        return self


class WrittenOpenAIJudge(OpenAIDecides, JudgeConnection):
    """A language model as a judge."""

    type: Literal["openai"]
    rubric: Annotated[str, AfterValidator(_rubric)] = Field(DEFAULT, examples=[DEFAULT])
    """What the judge is told to decide."""


WrittenJudge = Literal["literal"] | WrittenOpenAIJudge


class JudgeFile(WireModel):
    """A judge in a file of its own, to judge stored ledgers with."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    version: Literal[1]
    """The format of this file."""
    judge: WrittenJudge
    """The judge."""
    calibration: Sha256 | None = None
    """The calibration record that it is to count by."""
    registry: str | None = None
    """The operator's registry that trusts that record, relative to this file."""


class LiteralConfiguration(WireModel):
    """The literal fixture judge."""

    type: Literal["literal"]
    criterion: Criterion
    version: Sha256
    """The hash of its source."""


class OpenAIConfiguration(OpenAIDecides):
    """A language model, everything resolved."""

    type: Literal["openai"]
    criterion: Criterion
    version: Sha256
    """The hash of the source that asks it and reads its answers."""
    rubric: RubricReference
    returned_model: ModelName


JudgeConfiguration = Annotated[LiteralConfiguration | OpenAIConfiguration, Field(discriminator="type")]


class RegisteredJudge(WireModel):
    """A judge as the manifest holds it."""

    configuration: JudgeConfiguration
    policy_version: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    calibration: Sha256 | None
    """The calibration record that it is to count by; whether it does, a registry of the operator's says."""
    connection: JudgeConnection | None
    """None where nothing has to be reached."""

    def configuration_hash(self) -> str:
        return configuration_hash(self.configuration)


def configuration_hash(configuration: LiteralConfiguration | OpenAIConfiguration) -> str:
    """What judgments, cached votes and calibration records are keyed by."""
    return canonical_hash(configuration.model_dump(mode="json"))


def registered(
    written: Literal["literal"] | WrittenOpenAIJudge, world: str, calibration: str | None = None
) -> RegisteredJudge:
    """A written judge with everything resolved.

    Raises:
        ValueError: the world has no policy that a judge could be told.
    """
    if world not in POLICY_VERSIONS:
        raise ValueError(f"there is no judge for the world {world!r}")
    policy = POLICY_VERSIONS[world]
    if isinstance(written, str):
        literal = LiteralConfiguration(
            type="literal", criterion=CRITERION, version=source_hash("grading.judge.literal")
        )
        return RegisteredJudge(configuration=literal, policy_version=policy, calibration=calibration, connection=None)
    decides = {name: getattr(written, name) for name in OpenAIDecides.model_fields}
    configuration = OpenAIConfiguration(
        **{
            **decides,
            "type": "openai",
            "criterion": CRITERION,
            "version": openai_version(),
            "rubric": reference(written.rubric),
            "returned_model": written.returned_model or written.model,
        }
    )
    connection = JudgeConnection(**{name: getattr(written, name) for name in JudgeConnection.model_fields})
    return RegisteredJudge(
        configuration=configuration, policy_version=policy, calibration=calibration, connection=connection
    )


def openai_version() -> str:
    """One hash over the source that decides how a model is asked and how its answer is read."""
    return canonical_hash([source_hash(f"grading.judge.{name}") for name in ("openai", "prompt", "answer")])
