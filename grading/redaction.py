"""Redaction: what a matrix keeps from leaving for a judge, for Phoenix or for a report.

Applied to every text of a JSON value before anything is cut or encoded, so that half of a number cannot slip through.
The store keeps the original. Patterns are Python regular expressions of the operator's; what they match is for the
operator to test: a redaction that misses something says nothing.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from simulator.model import WireModel

PackagedName = Literal["email", "card-number", "iban", "phone"]

# An IBAN's digits look like a card's, so it comes first.
PACKAGED: dict[PackagedName, tuple[str, str]] = {
    "email": (r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}", "[email]"),
    "iban": (r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b", "[IBAN]"),
    "card-number": (r"(?<![0-9])[0-9](?:[ -]?[0-9]){12,18}(?![0-9])", "[card number]"),
    "phone": (r"(?<![\w+])\+[0-9](?:[ ()./-]{0,2}[0-9]){6,14}(?![0-9])", "[phone number]"),
}


def _pattern(text: str) -> str:
    try:
        compiled = re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    if compiled.search("") is not None:
        raise ValueError("fits the empty text, so it would be put between all characters")
    return text


Pattern = Annotated[str, StringConstraints(min_length=1, max_length=1_000), AfterValidator(_pattern)]


class Replacement(WireModel):
    """A pattern, and what stands for it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    pattern: Pattern = Field(examples=[r"customer-[0-9]+"])
    """A regular expression as Python's re module reads it."""
    replacement: Annotated[str, StringConstraints(max_length=200)] = Field("[redacted]")
    """Put in its place, literally."""


class Redaction(WireModel):
    """What is replaced before anything leaves, the packaged kinds first, then one's own in their order."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    packaged: list[PackagedName] = Field([], examples=[["email", "card-number"]])
    """Kinds of text that Cellwise knows how to find."""
    replace: list[Replacement] = Field([])
    """Patterns of your own."""

    @model_validator(mode="after")
    def _does_something(self) -> "Redaction":
        if not self.packaged and not self.replace:
            raise ValueError("names nothing to replace: write packaged, replace, or leave the redaction out")
        if len(set(self.packaged)) < len(self.packaged):
            raise ValueError("packaged: a name is there twice")
        return self


class RegisteredRedaction(WireModel):
    """A redaction with the packaged patterns written out, as the manifest holds it."""

    rules: Annotated[list[Replacement], Field(min_length=1)]

    @classmethod
    def of(cls, redaction: Redaction) -> "RegisteredRedaction":
        packaged = [
            Replacement(pattern=pattern, replacement=replacement)
            for name, (pattern, replacement) in PACKAGED.items()
            if name in redaction.packaged
        ]
        return cls(rules=[*packaged, *redaction.replace])


class Redactor:
    """From JSON values to the ones that may leave; without a redaction, as they are."""

    def __init__(self, redaction: RegisteredRedaction | None) -> None:
        rules = redaction.rules if redaction is not None else []
        self._rules = [(re.compile(rule.pattern), rule.replacement) for rule in rules]

    def text(self, text: str) -> str:
        for pattern, replacement in self._rules:
            # A function, so that a backslash in the replacement stays one.
            text = pattern.sub(lambda _, text=replacement: text, text)  # type: ignore[misc]
        return text

    def value(self, value: Any, *, names: bool = False) -> Any:
        """Every text of a value.

        Args:
            names: the names of members too. Below a member called ``arguments`` they are in any case, since an agent
                chose them; the others are ours.
        """
        if not self._rules:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.value(item, names=names) for item in value]
        if not isinstance(value, dict):
            return value
        redacted: dict[str, Any] = {}
        for name, item in value.items():
            known = shown = self.text(name) if names else name
            count = 1
            while shown in redacted:
                # Two names that are redacted to the same text are still two members.
                count += 1
                shown = f"{known} ({count})"
            redacted[shown] = self.value(item, names=names or name == "arguments")
        return redacted
