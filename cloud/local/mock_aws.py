"""The AWS of a local run: moto in this process, with a layer in front for what moto lacks.

One HTTP server on the loopback answers the EC2 API and, below `/imds/`, the metadata services.
Callers need the session token of the run's role or the key of an instance. The layer in front of
moto has: which calls are allowed, how many instances there may be, refusals for lack of capacity,
lost answers, spot prices, quotas, idempotent client tokens, and a CreateFleet that goes through its
pools. This is the only file that looks inside moto; requests to moto are served one at a time.
"""

import os
import secrets
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlencode

from bamboo.ids import InstanceId, ZoneId
from cloud.ec2.requests import RUN_TAG
from cloud.local.faults import Market
from cloud.local.http_server import Answer, Handling, LoopbackServer, Request
from cloud.local.limits import connections_of
from cloud.local.metadata import PREFIX, MetadataService
from cloud.local.mock_answers import forbidden, price_history, quota, refusal
from cloud.local.mock_calls import (
    MOST_INSTANCES,
    RUN_CALLS,
    call_of,
    is_among,
    offers,
    service_of,
)
from cloud.local.mock_fleets import FleetAsked, FleetPool, fleet_created, fleet_id, instance_ids
from cloud.local.mock_repeats import no_such_entity, of_the_gone

# moto reads this when it makes its first backend: thousands of images that are never used.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"

from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import StateReason
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

Environ: TypeAlias = dict[str, Any]
Perform: TypeAlias = Callable[[Mapping[str, str], Environ], Answer]

MOST_BODY_BYTES = 1 << 20
"""A launch with its user data has some 20 KiB."""
MOST_OBJECT_BYTES = 64 << 20
"""An upload to a bucket comes in parts of 8 MiB."""
LIMIT = "InstanceLimitExceeded"

INTERRUPTED = "Server.SpotInstanceTermination"
_LIVE_STATES = ("pending", "running")
_LAUNCHES = ("RunInstances", "CreateFleet")
_CHANGES_INSTANCES = (*_LAUNCHES, "TerminateInstances", "DeleteFleets")


@dataclass(frozen=True, slots=True, kw_only=True)
class MockInstance:
    """An instance as moto has it. `live`: pending or running."""

    instance: InstanceId
    zone: ZoneId
    region: str
    instance_type: str
    lifecycle: str
    state: str
    user_data: str

    @property
    def live(self) -> bool:
        return self.state in _LIVE_STATES


class MockAws:
    """The HTTP server and the handles that the host needs.

    `on_change` is called, from a request's thread, after each request that may have started or
    ended instances. `quotas` are vCPUs by code; all others are 0, as in a new account. `calls` are
    the allowed calls, as `service:Action` or `service:*`. `most_instances` limits how many of the
    instances started here run at once. Callers sign with any key, and with the session token of the
    metadata service's role.
    """

    def __init__(
        self,
        *,
        metadata: MetadataService,
        market: Market,
        on_change: Callable[[], None],
        quotas: Mapping[str, float] | None = None,
        calls: Collection[str] = RUN_CALLS,
        most_instances: int = MOST_INSTANCES,
    ) -> None:
        self._quotas = dict(quotas or {})
        self._metadata = metadata
        self._market = market
        self._on_change = on_change
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._moto_lock = threading.Lock()
        self._answers_by_token: dict[str, Answer] = {}
        self._of_fleet: dict[str, tuple[str, ...]] = {}
        self._calls = frozenset(calls)
        self._most_instances = most_instances
        self._started: set[str] = set()
        self._server = LoopbackServer(
            Handling(admit=self._admit, most_bytes=_most_bytes, answer=self._answer),
            most=connections_of(most_instances),
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def token(self) -> str:
        """The session token that callers use."""
        return self._metadata.role_token

    def start(self) -> None:
        """Serve in a thread."""
        self._server.start()

    def stop(self) -> None:
        """Stop serving; waits for the thread."""
        self._server.stop()

    def instances(self) -> tuple[MockInstance, ...]:
        """All instances ever started for a run, also ended ones; the account may have others."""
        with self._moto_lock:
            return tuple(_seen(one) for one in _moto_instances() if _is_of_a_run(one))

    def interrupt(self, instance: InstanceId, *, even_ended: bool = False) -> bool:
        """Take an instance the way the cloud does. Returns False when it is not live any more,
        unless `even_ended`: then the cloud had taken it before it was ended."""
        with self._moto_lock:
            for found in _moto_instances():
                if found.id == instance and (even_ended or found.state in _LIVE_STATES):
                    found.terminate()
                    found.state_reason = StateReason(
                        f"{INTERRUPTED}: Instance terminated due to no available spot capacity",
                        INTERRUPTED,
                    )
                    return True
        return False

    def _admit(self, request: Request) -> Answer | None:
        """The answer to a caller that does not belong to this run, before a body is read. A browser
        never does: it sends the origin of its page, or asks for another host's name."""
        port = self._server.port
        if "origin" in request.headers or request.headers.get("host") not in (
            f"127.0.0.1:{port}",
            f"localhost:{port}",
        ):
            return forbidden("AuthFailure", "no browser has anything to ask here")
        if request.path.startswith(PREFIX):
            known = self._metadata.knows(request.path)
            return None if known else Answer(status="404 Not Found", headers=(), body=b"")
        given = request.headers.get("x-amz-security-token", "").encode()
        if not secrets.compare_digest(given, self._metadata.role_token.encode()):
            return forbidden("AuthFailure", "the session token is not this run's")
        if not offers(service_of(request.headers), self._calls):
            return forbidden("UnauthorizedOperation", "a run asks nothing of this service")
        return None

    def _answer(self, request: Request) -> Answer:
        if request.path.startswith(PREFIX):
            return self._answer_metadata(request)
        return self._answer_api(request)

    def _answer_metadata(self, request: Request) -> Answer:
        response = self._metadata.respond(request.method, request.path, request.headers)
        return Answer(
            status=f"{response.status} {'OK' if response.status == 200 else 'Refused'}",
            headers=(("Content-Type", "text/plain"), *response.headers.items()),
            body=response.body.encode(),
        )

    def _answer_api(self, request: Request) -> Answer:
        fields = parse_qs(request.body.decode(errors="replace")) if _is_form(request) else {}
        call = call_of(request, fields)
        if not is_among(call, self._calls):
            return forbidden("UnauthorizedOperation", f"a run does not ask for {call or 'that'}")
        if call == "servicequotas:GetServiceQuota":
            return quota(self._quotas, request.body)
        form, environ = {name: values[0] for name, values in fields.items()}, _environ(request)
        action = form.get("Action", "")
        with self._moto_lock:
            if action == "RunInstances":
                answer = self._once(form, environ, self._run_instances)
            elif action == "CreateFleet":
                answer = self._once(form, environ, self._create_fleet)
            elif action == "DeleteFleets":
                answer = self._delete_fleets(form, environ)
            elif action == "TerminateInstances":
                answer = self._terminate_instances(environ)
            elif action == "DescribeSpotPriceHistory":
                answer = price_history(self._market, form)
            elif action == "RemoveRoleFromInstanceProfile":
                answer = self._remove_role(environ)
            elif action == "CreateLaunchTemplate":
                answer = self._create_template(environ)
            else:
                answer = of_the_gone(form, _ask(self._moto, environ))
        if action in _CHANGES_INSTANCES:
            self._on_change()
        if action in _LAUNCHES and self._market.loses_answer():
            request.hang_up()
        return answer

    def _room(self) -> int:
        """How many more instances may be started."""
        live = {one.id for one in _moto_instances() if one.state in _LIVE_STATES}
        return max(0, self._most_instances - len(live & self._started))

    def _terminate_instances(self, environ: Environ) -> Answer:
        """Ending an ended instance changes nothing. moto would forget when it ended and why."""
        ended = [
            (one, one.state_reason, one._reason)
            for one in _moto_instances()
            if one.state not in _LIVE_STATES
        ]
        answer = _ask(self._moto, environ)
        for one, state_reason, reason in ended:
            one.state_reason = state_reason
            one._reason = reason
        return answer

    def _once(self, form: Mapping[str, str], environ: Environ, perform: Perform) -> Answer:
        """Start what is requested, or answer with what the same token started before."""
        token = form.get("ClientToken", "")
        answer = self._answers_by_token.get(token)
        if answer is None:
            answer = perform(form, environ)
            if token and answer.ok:
                self._answers_by_token[token] = answer
        return answer

    def _run_instances(self, form: Mapping[str, str], environ: Environ) -> Answer:
        zone = form.get("Placement.AvailabilityZone", "")
        instance_type = form.get("InstanceType", "")
        fault = self._market.refusal(zone=zone, instance_type=instance_type)
        if fault is not None and fault.grant == 0:
            return refusal(fault.code, f"no capacity for {instance_type} in {zone} at present")
        # moto starts MinCount instances; EC2 starts as many as it has, up to MaxCount.
        least, wished = int(form.get("MinCount", "1")), int(form.get("MaxCount", "1"))
        if (room := self._room()) < max(1, least):
            return refusal(LIMIT, self._limit())
        given = min(wished, room) if fault is None else min(wished, room, fault.grant)
        return self._start({**form, "MinCount": str(given), "MaxCount": str(given)}, environ)

    def _start(self, form: Mapping[str, str], environ: Environ) -> Answer:
        answer = self._ask_moto_for(form, environ)
        if answer.ok:
            self._started.update(instance_ids(answer.body))
        return answer

    def _limit(self) -> str:
        return f"this local cloud runs {self._most_instances} instances at once and no more"

    def _create_fleet(self, form: Mapping[str, str], environ: Environ) -> Answer:
        """Go through the pools in the order of their priority, and start as many of each as there
        are. moto itself takes the first pool for all, and knows no errors; it keeps the fleet's
        record."""
        asked = FleetAsked.read(form)
        if (fault := self._market.refusal(zone="", instance_type="", of_fleet=True)) is not None:
            return refusal(fault.code, "the fleet as a whole is refused")
        # With capacity 0, as moto would fill it otherwise; and without the tags of its instances.
        kept = self._ask_moto_for(asked.record(form), environ)
        if not kept.ok:
            return kept
        given: list[tuple[FleetPool, str]] = []
        errors: list[tuple[FleetPool, str]] = []
        for pool in asked.pools:
            missing = asked.count - len(given)
            if asked.one_zone and given and pool.zone != given[0][0].zone:
                continue
            fault = (
                self._market.refusal(zone=pool.zone, instance_type=pool.kind) if missing else None
            )
            room = self._room()
            number = min(missing, room) if fault is None else min(missing, room, fault.grant)
            if number:
                answer = self._start(asked.run_instances(pool, number), environ)
                if not answer.ok:
                    return answer
                given += [(pool, name) for name in instance_ids(answer.body)]
            if number < missing:
                errors.append((pool, LIMIT if fault is None else fault.code))
        fleet = fleet_id(kept.body)
        self._of_fleet[fleet] = tuple(name for _, name in given)
        return fleet_created(fleet, given, errors, market=asked.market)

    def _delete_fleets(self, form: Mapping[str, str], environ: Environ) -> Answer:
        """Delete fleets with the instances that each started, which moto does not know."""
        for key, fleet in form.items():
            names = self._of_fleet.pop(fleet, ()) if key.startswith("FleetId.") else ()
            if names and form.get("TerminateInstances") == "true":
                ids = {f"InstanceId.{n}": name for n, name in enumerate(names, start=1)}
                ends = {"Action": "TerminateInstances", "Version": form["Version"], **ids}
                self._ask_moto_for(ends, environ)
        return self._ask_moto_for({**form, "TerminateInstances": "false"}, environ)

    def _create_template(self, environ: Environ) -> Answer:
        """moto would give the tags of the template itself to what is started from it."""
        answer = _ask(self._moto, environ)
        _drop_tags_of_templates()
        return answer

    def _remove_role(self, environ: Environ) -> Answer:
        try:
            return _ask(self._moto, environ)
        except ValueError:  # moto raises it for a role that is not in the profile
            return no_such_entity("The role is not in the instance profile.")

    def _ask_moto_for(self, form: Mapping[str, str], environ: Environ) -> Answer:
        body = urlencode(form).encode()
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = BytesIO(body), str(len(body))
        ends = form["Action"] == "TerminateInstances"
        return self._terminate_instances(environ) if ends else _ask(self._moto, environ)


def _ask(moto: Any, environ: Environ) -> Answer:
    started: list[tuple[str, tuple[tuple[str, str], ...]]] = []

    def start(status: str, headers: Iterable[tuple[str, str]], *_: object) -> None:
        started.append((status, tuple(headers)))

    body = b"".join(moto(environ, start))
    status, headers = started[0]
    return Answer(status=status, headers=headers, body=body)


def _most_bytes(request: Request) -> int:
    return MOST_OBJECT_BYTES if service_of(request.headers) == "s3" else MOST_BODY_BYTES


def _is_form(request: Request) -> bool:
    kind = request.headers.get("content-type", "")
    return kind.startswith("application/x-www-form-urlencoded") and request.method == "POST"


def _environ(request: Request) -> Environ:
    """The request in the form that moto takes."""
    host, _, port = request.headers["host"].rpartition(":")
    target = f"{request.path}?{request.query}" if request.query else request.path
    environ: Environ = {
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": BytesIO(request.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote(request.path).encode().decode("latin-1"),
        "QUERY_STRING": request.query,
        "REQUEST_URI": target,
        "RAW_URI": target,
        "SERVER_NAME": host,
        "SERVER_PORT": port,
        "SERVER_PROTOCOL": "HTTP/1.1",
    }
    for name, value in request.headers.items():
        key = name.upper().replace("-", "_")
        environ[key if key.startswith("CONTENT_") else f"HTTP_{key}"] = value
    return {**environ, "CONTENT_LENGTH": str(len(request.body))}


def _moto_backends() -> list[Any]:
    return [backend for account in ec2_backends.values() for backend in account.values()]


def _drop_tags_of_templates() -> None:
    for backend in _moto_backends():
        for template in backend.launch_templates.values():
            for version in template.versions:
                given = version.data.pop("TagSpecifications", [])
                kept = [one for one in given if one["ResourceType"] != "launch-template"]
                version.data |= {"TagSpecifications": kept} if kept else {}


def _moto_instances() -> list[Any]:
    return [instance for backend in _moto_backends() for instance in backend.all_instances()]


def _is_of_a_run(instance: Any) -> bool:
    return any(tag["key"] == RUN_TAG for tag in instance.get_tags())


def _seen(instance: Any) -> MockInstance:
    return MockInstance(
        instance=InstanceId(instance.id),
        zone=ZoneId(instance.placement.zone),
        region=instance.region_name,
        instance_type=instance.instance_type,
        lifecycle=instance.lifecycle or "on-demand",
        state=instance.state,
        user_data=str(instance.user_data or ""),
    )
