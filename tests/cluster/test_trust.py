"""What a cell, its agent and a person may do on the cluster, and what they may not."""

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from conftest import CELLS, NAMESPACE, Cellwise, Cluster, Installed, forwarded
from matrices import SLOW, study
from test_pod_faults import Sweep

FORGE = """
import json, sys, urllib.request, urllib.error
order = json.load(sys.stdin)
token = order["token"]
if token == "own":
    token = open("/var/run/secrets/cellwise/token").read()
request = urllib.request.Request(order["url"], data=order["body"].encode(), method="POST")
request.add_header("content-type", "application/json")
if token:
    request.add_header("authorization", "Bearer " + token)
try:
    answer = urllib.request.urlopen(request, timeout=20)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode()[:500])
"""


@pytest.fixture(scope="module")
def two_pods(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """Two cells' pods that run for a while."""
    cellwise = Cellwise(installed.cluster, tmp_path_factory.mktemp("two"))
    sweep = Sweep(cellwise, f"two-{time.time():.0f}", SLOW % 240, cases=2, more="limits: {seconds: 300}\n")

    def both() -> list[dict[str, Any]] | None:
        pods = [pod for pod in sweep.pods() if pod["status"].get("phase") == "Running"]
        held = installed.sql("SELECT count(*) FROM attempt WHERE state IN ('leased', 'running')")
        return pods if len(pods) == 2 and int(held[0][0]) >= 2 else None

    yield installed.cluster.until("both pods hold a trial", both)
    cellwise("cancel", sweep.name, "--on", "kubernetes", "--namespace", NAMESPACE)
    sweep.process.kill()
    sweep.process.communicate()


def post(installed: Installed, pod: dict[str, Any], path: str, body: Any, token: str, port: int = 8080) -> int:
    """The status that intake answers a pod with."""
    text = body if isinstance(body, str) else json.dumps(body)
    url = f"http://cellwise-intake.{NAMESPACE}.svc:{port}{path}"
    command = ("-n", CELLS, "exec", "-i", pod["metadata"]["name"], "-c", "recorder", "--", "python3", "-c", FORGE)
    order = json.dumps({"url": url, "body": text, "token": token})
    # A network that loses a packet is asked again: only an answer is one.
    said = installed.cluster.until("intake answers", lambda: installed.cluster.kubectl(*command, given=order))
    return int(said.split()[0])


def attempt_of(installed: Installed, pod: dict[str, Any]) -> int:
    (row,) = installed.sql(f"SELECT id FROM attempt WHERE owner = '{pod['metadata']['uid']}'")
    return int(row[0])


def create_token(cluster: Cluster, account: str, namespace: str, audience: str, *more: str) -> str:
    command = ["-n", namespace, "create", "token", account, f"--audience={audience}", *more]
    return cluster.kubectl(*command).strip()


def test_a_forged_ledger_is_refused(installed: Installed, two_pods: list[dict[str, Any]]) -> None:
    one, other = two_pods
    forged = {"version": 1, "content": {}, "content_hash": "", "envelope": {}, "ledger_hash": ""}
    of_other = f"/v1/ledger?attempt={attempt_of(installed, other)}"
    before = installed.sql("SELECT count(*) FROM ledger")
    cluster = installed.cluster
    unbound = create_token(cluster, "cellwise-cells", CELLS, "cellwise-cells")
    elsewhere = create_token(cluster, "cellwise-cells", CELLS, "somebody-else")
    person = create_token(cluster, "cellwise-editor", NAMESPACE, "cellwise-people")
    refused = {
        "another pod's attempt": post(installed, one, of_other, forged, "own"),
        "no token": post(installed, one, of_other, forged, ""),
        "no token at all": post(installed, one, of_other, forged, "made.up.token"),
        "a token of no pod": post(installed, one, of_other, forged, unbound),
        "a token for others": post(installed, one, of_other, forged, elsewhere),
        "a person's token": post(installed, one, of_other, forged, person),
    }
    assert set(refused.values()) <= {401, 403}, refused
    launch = one["metadata"]["annotations"]["cellwise.dev/launch"]
    assignment = {
        "version": 1,
        "launch": launch,
        "index": 7,
        "software": {"version": "0.1.0", "source": f"sha256:{'0' * 64}", "python": "3.11.2"},
    }
    assert post(installed, one, "/v1/assignment", assignment, "own") in (403, 409)
    another = {**assignment, "launch": other["metadata"]["annotations"]["cellwise.dev/launch"], "index": 0}
    assert post(installed, one, "/v1/assignment", another, "own") == 403
    assert installed.sql("SELECT count(*) FROM ledger") == before
    states = installed.sql(
        f"SELECT state FROM attempt WHERE id IN ({attempt_of(installed, one)}, {attempt_of(installed, other)})"
    )
    assert {state for (state,) in states} <= {"leased", "running"}


def test_a_token_past_its_time_is_refused(installed: Installed, two_pods: list[dict[str, Any]]) -> None:
    """The pod's own token with other times, signed as the cluster does: none that it gives lives under ten minutes."""
    one, other = two_pods
    read = ("-n", CELLS, "exec", one["metadata"]["name"], "-c", "recorder", "--", "cat")
    token = installed.cluster.kubectl(*read, "/var/run/secrets/cellwise/token").strip()
    of_other = f"/v1/ledger?attempt={attempt_of(installed, other)}"
    now = int(time.time())
    assert post(installed, one, of_other, {}, signed_again(token, issued=now - 60, expires=now + 600)) == 403
    assert post(installed, one, of_other, {}, signed_again(token, issued=now - 4000, expires=now - 400)) == 401


def signed_again(token: str, *, issued: int, expires: int) -> str:
    key = os.environ.get("CELLWISE_TEST_SERVICE_ACCOUNT_KEY")
    if not key:
        pytest.skip("CELLWISE_TEST_SERVICE_ACCOUNT_KEY is not set: the key that the cluster signs tokens with")
    head, claims, _ = token.split(".")
    told = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    told |= {"iat": issued, "nbf": issued, "exp": expires}
    content = head + "." + _encoded(json.dumps(told).encode())
    made = subprocess.run(
        ["openssl", "dgst", "-sha256", "-sign", key],
        input=content.encode(),
        capture_output=True,
        check=True,
        timeout=20,
    )
    return content + "." + _encoded(made.stdout)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_a_cells_token_opens_nothing_on_the_people_port(installed: Installed, two_pods: list[dict[str, Any]]) -> None:
    """By its network the cell does not even reach that port; by its token it would not get in."""
    (one, _) = two_pods
    read = [
        "-n",
        CELLS,
        "exec",
        one["metadata"]["name"],
        "-c",
        "recorder",
        "--",
        "cat",
        "/var/run/secrets/cellwise/token",
    ]
    token = installed.cluster.kubectl(*read)
    with forwarded(installed.cluster, "svc/cellwise-intake", 8081) as url:
        for given, expected in ((token, (401, 403)), ("", (401,)), ("made.up.token", (401,))):
            headers = {"authorization": f"Bearer {given}"} if given else {}
            assert httpx.get(f"{url}/v1/matrices", headers=headers, timeout=20).status_code in expected


def test_a_cell_reaches_intake_and_nothing_else(installed: Installed, two_pods: list[dict[str, Any]]) -> None:
    one, other = two_pods
    reached = reaches(installed, one, [*targets(installed), f"{other['status']['podIP']}:8080"])
    assert reached == []
    installed.cluster.until(
        "it reaches intake", lambda: reaches(installed, one, [f"cellwise-intake.{NAMESPACE}.svc:8080"])
    )


def targets(installed: Installed) -> list[str]:
    """Where a cell must not get to: by name and by address."""
    found = ["kubernetes.default.svc:443"]
    for service in installed.cluster.get("services", namespace=NAMESPACE):
        for port in service["spec"]["ports"]:
            if (service["metadata"]["name"], port["port"]) != ("cellwise-intake", 8080):
                found.append(f"{service['metadata']['name']}.{NAMESPACE}.svc:{port['port']}")
    (api,) = [
        one for one in installed.cluster.get("services", namespace="default") if one["metadata"]["name"] == "kubernetes"
    ]
    found.append(f"{api['spec']['clusterIP']}:443")
    for pod in installed.cluster.get("pods", namespace=NAMESPACE):
        if pod["metadata"]["labels"].get("app.kubernetes.io/component") in ("postgresql", "phoenix"):
            for container in pod["spec"]["containers"]:
                found += [f"{pod['status']['podIP']}:{port['containerPort']}" for port in container.get("ports", [])]
    assert len(found) >= 6
    return found


def reaches(installed: Installed, pod: dict[str, Any], hosts: list[str]) -> list[str]:
    code = (
        "import json, socket, sys\n"
        "for host in json.load(sys.stdin):\n"
        "    name, _, port = host.rpartition(':')\n"
        "    for left in range(20, -1, -1):  # a name not found would pass for a host not reached\n"
        "        try: socket.getaddrinfo(name, int(port)); break\n"
        "        except OSError:\n"
        "            if not left: raise\n"
        "    try: socket.create_connection((name, int(port)), timeout=4).close(); print(host)\n"
        "    except OSError: pass\n"
    )
    out = installed.cluster.kubectl(
        *("-n", CELLS, "exec", "-i", pod["metadata"]["name"], "-c", "recorder", "--", "python3", "-c", code),
        given=json.dumps(hosts),
        timeout=120,
    )
    return out.split()


def test_an_agents_container_finds_nothing_that_it_must_not(
    cellwise: Cellwise, installed: Installed, matrix_name: str
) -> None:
    hosts = json.dumps(targets(installed))
    image = installed.images.agent
    condition = f"{{name: curious, agent: 'agents:looks_around', image: '{image}', settings: {{hosts: {hosts}}}}}"
    sweep = Sweep(cellwise, matrix_name, condition, cases=1, more="limits: {seconds: 120}\n")
    answer = sweep.end()
    assert answer.status == 0, answer.err
    from grading.store import Store, reading

    store = str(cellwise.folder / "pulled.db")
    assert cellwise("pull", matrix_name, "--namespace", NAMESPACE, "--store", store).status == 0
    with Store.open(store) as opened:
        (matrix,) = reading.matrices(opened)
        (trial,) = reading.trials(opened, matrix.id, ledgers=True)
    ledger = json.loads(trial.ledger or b"")
    assert ledger["content"]["message"] == "found: nothing"
    assert ledger["envelope"]["isolation"] == "container"


def test_who_may_not_use_a_namespaces_matrices_can_neither_read_nor_change_one(
    cellwise: Cellwise, installed: Installed
) -> None:
    """A person with rights of their own elsewhere, and none here."""
    cluster = installed.cluster
    cluster.kubectl("create", "namespace", "elsewhere", check=False)
    cluster.kubectl("-n", "elsewhere", "create", "serviceaccount", "stranger", check=False)
    path = study(cellwise.folder, "stranger", SLOW % 1, cases=1)
    before = installed.sql("SELECT count(*) FROM matrix")
    stranger = as_account(cellwise, "elsewhere", "stranger")
    for command in (["status"], ["run", str(path)], ["cancel", "order-resolution"]):
        answer = stranger(*command, "--on", "kubernetes", "--namespace", NAMESPACE)
        assert answer.status == 2, (command, answer.out, answer.err)
        assert "cellwise" in answer.err
    assert installed.sql("SELECT count(*) FROM matrix") == before


def as_account(cellwise: Cellwise, namespace: str, account: str) -> Cellwise:
    """The command line with the kubeconfig of a ServiceAccount."""
    cluster = cellwise.cluster
    token = cluster.kubectl("-n", namespace, "create", "token", account).strip()
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = cellwise.folder / f"{account}.kubeconfig"
    path.write_text(json.dumps(config))
    return Cellwise(Cluster(str(path)), cellwise.folder)


def test_who_may_only_look_can_read_and_not_change(cellwise: Cellwise, installed: Installed) -> None:
    cluster = installed.cluster
    cluster.kubectl("-n", NAMESPACE, "create", "serviceaccount", "reader", check=False)
    role = ["-n", NAMESPACE, "create", "role", "look", "--verb=create", "--resource=serviceaccounts/token"]
    cluster.kubectl(*role, "--resource-name=cellwise-viewer", check=False)
    cluster.kubectl(
        *("-n", NAMESPACE, "create", "role", "way-in", "--verb=get,list,create"),
        "--resource=pods,services,pods/portforward",
        check=False,
    )
    for name in ("look", "way-in"):
        bind = ["-n", NAMESPACE, "create", "rolebinding", name, f"--role={name}"]
        cluster.kubectl(*bind, f"--serviceaccount={NAMESPACE}:reader", check=False)
    reader = as_account(cellwise, NAMESPACE, "reader")
    there = ("--on", "kubernetes", "--namespace", NAMESPACE)
    looked = reader("status", *there)
    assert looked.status == 0, looked.err
    path = study(cellwise.folder, "reader", SLOW % 1, cases=1)
    refused = reader("run", str(path), *there)
    assert refused.status == 2, refused.err
    assert "cellwise-editor" in refused.err
