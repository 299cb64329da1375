"""The configured models: as options of a choice, as a list for callers, and which of them can answer a call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from etude.contracts.errors import RequestError
from etude.contracts.option import exceeds
from etude.contracts.suggestions import nearest
from etude.serving.routing.asked import AUTO, DEFAULT_CHOICE, PREFIX, Asked, AskedError
from etude.serving.routing.config import ModelConfig, RoutingConfig
from etude.serving.routing.responses import to_chat
from etude.serving.routing.upstreams import Upstreams

OWNER = "etude"


@dataclass(frozen=True, kw_only=True)
class Models:
    config: RoutingConfig
    upstreams: Upstreams

    @cached_property
    def options(self) -> list[dict[str, Any]]:
        """The chat models as options of a choice, the default first."""
        chats = [name for name, model in self.config.models.items() if model.kind == "chat"]
        chats.sort(key=lambda name: name != self.config.default_model)
        return [_option(name, self.config.models[name]) for name in chats]

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """Names of the choices that callers may ask."""
        return (DEFAULT_CHOICE, *self.config.choices)

    def listed(self, created: int) -> list[dict[str, Any]]:
        """As OpenAI lists models."""
        routed = [PREFIX + name for name in (AUTO, *self.config.choices)] if self.options else []
        named = [(name, OWNER) for name in routed]
        named += [(name, model.upstream) for name, model in self.config.models.items()]
        return [{"id": id, "object": "model", "created": created, "owned_by": owner} for id, owner in named]

    def check(self, asked: Asked) -> None:
        """AskedError unless there is such a model, and it does what is asked."""
        if asked.choice is not None:
            if asked.choice not in self.choices or not self.options:
                raise self._unknown(asked.model)
            if asked.api == "embeddings":
                raise AskedError(
                    f"the model is {asked.model!r}: vectors of two models cannot be compared, so name one model",
                    param="model",
                )
            return
        model = self.config.models.get(asked.model)
        if model is None:
            raise self._unknown(asked.model)
        if (model.kind == "embedding") != (asked.api == "embeddings"):
            raise AskedError(f"{asked.model!r} is a model of the kind {model.kind}: name another", param="model")
        if asked.api == "responses" and not self.upstreams.of(asked.model).config.has_responses:
            to_chat(asked.body)

    def _unknown(self, name: str) -> AskedError:
        known = [one["id"] for one in self.listed(0)]
        if not known:
            message = "no models are configured: add routing.upstreams and routing.models to etude.yaml"
        else:
            message = f"there is no model {name[:80]!r}{nearest(name[:80], known)}; GET /v1/models lists them"
        return AskedError(message, param="model", code="model_not_found", status=404)

    def eligible(self, asked: Asked, without: Mapping[str, str]) -> list[str]:
        """Names of the models that can answer; AskedError or RequestError says of each why not. `without` are those
        that failed, with the reason."""
        reasons: dict[str, str] = {}
        found, wait_s = list[str](), math.inf
        translates = self._translates(asked)
        for option in self.options:
            name = option["name"]
            reason = without.get(name) or next(self._why_not(name, asked, translates), None)
            if reason is None and (pause_s := self.upstreams.wait_s(name)) > 0:
                reason, wait_s = f"it failed and is asked again in {pause_s:.0f} s", min(wait_s, pause_s)
            if reason is None:
                found.append(name)
            else:
                reasons[name] = reason
        if found:
            return found
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        if wait_s < math.inf:
            raise RequestError(f"no model can answer now ({listed})", status=503, wait_s=wait_s)
        raise AskedError(f"no model can answer this ({listed})", param="model", code="no_eligible_model")

    def _translates(self, asked: Asked) -> Callable[[], str | None]:
        """Why a request for /responses cannot be translated, if it cannot."""
        found: list[str | None] = []

        def why_not() -> str | None:
            if not found:
                try:
                    to_chat(asked.body)
                    found.append(None)
                except AskedError as error:
                    found.append(f"{error.param} needs a service with the Responses API")
            return found[0]

        return why_not

    def _why_not(self, name: str, asked: Asked, translates: Callable[[], str | None]) -> Iterator[str]:
        """By what the settings say of it."""
        model, wanted = self.config.models[name], asked.preferences
        length = asked.tokens + asked.max_tokens
        if model.context_tokens is not None and length > model.context_tokens:
            yield f"about {length:,} tokens exceed its context of {model.context_tokens:,}"
        for needs, has, what in (
            (asked.tools, model.tools, "tools"),
            (asked.images, model.vision, "images"),
            (asked.json, model.json, "response_format"),
        ):
            if needs and not has:
                yield f"it does not take {what}"
        if wanted.region is not None and wanted.region not in model.regions:
            yield f"its regions are {', '.join(model.regions) or 'not known'}, without {wanted.region!r}"
        least_usd = (asked.tokens * (model.usd_per_mtok_in or 0.0)) / 1e6
        if wanted.max_cost_usd is not None and exceeds(least_usd, wanted.max_cost_usd):
            yield f"reading the request costs {least_usd:.2g} USD, above max_cost_usd {wanted.max_cost_usd:g}"
        if wanted.max_latency_ms is not None and exceeds(model.latency_ms or 0.0, wanted.max_latency_ms):
            yield f"it takes {model.latency_ms:g} ms, above max_latency_ms {wanted.max_latency_ms:g}"
        if asked.api == "responses" and not self.upstreams.of(name).config.has_responses:
            reason = translates()
            if reason is not None:
                yield reason


def _option(name: str, model: ModelConfig) -> dict[str, Any]:
    prices = {key: getattr(model, key) for key in ("usd_per_mtok_in", "usd_per_mtok_out", "context_tokens")}
    known = {key: value for key, value in prices.items() if value is not None}
    if model.regions:
        known["regions"] = list(model.regions)
    return {"name": name, "description": model.description} | known if model.description else {"name": name} | known
