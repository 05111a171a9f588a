"""Where a pod finds the intake without asking a name server."""

import pytest

from k8s.intake_address import IntakeAddress


class Names:
    """A name server, and the time."""

    def __init__(self) -> None:
        self.answer: str | None = "10.96.0.7"
        self.asked: list[str] = []
        self.now = 100.0

    def resolve(self, host: str) -> str:
        self.asked.append(host)
        if self.answer is None:
            raise OSError(-3, "Temporary failure in name resolution")
        return self.answer

    def of(self, url: str) -> IntakeAddress:
        return IntakeAddress(url, resolve=self.resolve, clock=lambda: self.now)


def test_it_is_asked_for_once_a_minute() -> None:
    names = Names()
    intake = names.of("http://cellwise-intake.cellwise.svc:8080")
    assert [intake.address() for _ in range(3)] == ["10.96.0.7"] * 3
    assert names.asked == ["cellwise-intake.cellwise.svc"]
    names.now, names.answer = names.now + 60, "10.96.0.8"
    assert intake.address() == "10.96.0.8"


def test_a_name_that_is_not_found_is_left_to_the_pods() -> None:
    names = Names()
    intake = names.of("http://cellwise-intake.cellwise.svc:8080")
    names.answer = None
    assert intake.address() is None
    assert intake.address() is None
    assert len(names.asked) == 1
    names.now, names.answer = names.now + 60, "10.96.0.7"
    assert intake.address() == "10.96.0.7"


def test_an_address_of_which_nothing_is_known_any_more_is_not_told() -> None:
    names = Names()
    intake = names.of("http://cellwise-intake.cellwise.svc:8080")
    assert intake.address() == "10.96.0.7"
    names.now, names.answer = names.now + 60, None
    assert intake.address() is None


@pytest.mark.parametrize("url", ["https://intake.example.com", "http://intake:8080", "http://10.1.2.3:8080"])
def test_what_is_no_service_of_the_cluster_may_move(url: str) -> None:
    names = Names()
    assert names.of(url).address() is None
    assert names.asked == []
