/** Jobs, policies and releases: the routes that people and operators use most. `EtudeClient.call` has all others. */
import type * as api from "./api.js";
import type { Answer, Asking, EtudeClient } from "./client.js";
import type { Call } from "./connection.js";

type QueryOf<R extends keyof api.Routes> = Asking<R> extends { query?: infer Q } ? Q : never;

export class Jobs {
  constructor(private readonly client: EtudeClient) {}

  /** A page of jobs, the newest first. */
  async list(query: QueryOf<"GET /v1/jobs"> = {}, call?: Call): Promise<api.JobPage> {
    return await this.client.call("GET /v1/jobs", { query }, call);
  }

  /** All jobs, page by page. */
  all(query: QueryOf<"GET /v1/jobs"> = {}, call?: Call): AsyncGenerator<api.Job, void, void> {
    return this.client.all("GET /v1/jobs", { query }, call);
  }

  async show(id: string, call?: Call): Promise<api.Job> {
    return await this.client.call("GET /v1/jobs/{id}", { path: { id } }, call);
  }

  /** Queue a training job; the loop runs it. */
  async submit(body: api.JobAsked, call?: Call): Promise<api.Job> {
    return await this.client.call("POST /v1/jobs", { body }, call);
  }

  async cancel(id: string, call?: Call): Promise<api.Job> {
    return await this.client.call("POST /v1/jobs/{id}/cancel", { path: { id } }, call);
  }

  /** Queue a failed job again: it resumes where it stopped. */
  async retry(id: string, call?: Call): Promise<api.Job> {
    return await this.client.call("POST /v1/jobs/{id}/retry", { path: { id } }, call);
  }
}

export class Models {
  constructor(private readonly client: EtudeClient) {}

  /** A page of registered policies. */
  async list(query: QueryOf<"GET /v1/policies"> = {}, call?: Call): Promise<api.PolicyPage> {
    return await this.client.call("GET /v1/policies", { query }, call);
  }

  all(query: QueryOf<"GET /v1/policies"> = {}, call?: Call): AsyncGenerator<api.VersionRow, void, void> {
    return this.client.all("GET /v1/policies", { query }, call);
  }

  async show(version: string, call?: Call): Promise<api.PolicyDetail> {
    return await this.client.call("GET /v1/policies/{version}", { path: { version } }, call);
  }

  /** What it was trained on, and from which policy. */
  async lineage(version: string, call?: Call): Promise<api.PolicyLineage> {
    return await this.client.call("GET /v1/policies/{version}/lineage", { path: { version } }, call);
  }

  async compare(version: string, other: string, call?: Call): Promise<api.Differences> {
    return await this.client.call("GET /v1/policies/{version}/diff/{other}", { path: { version, other } }, call);
  }

  /** Whether its files are as they were signed. */
  async verify(version: string, call?: Call): Promise<api.Verified> {
    return await this.client.call("GET /v1/policies/{version}/verification", { path: { version } }, call);
  }

  /** The report of the gates. */
  async gates(version: string, call?: Call): Promise<api.GatesReport> {
    return await this.client.call("GET /v1/policies/{version}/gates", { path: { version } }, call);
  }

  /** Run the gates; the operation says when they are done. */
  async runGates(version: string, body: api.GatesAsked = {}, call?: Call): Promise<api.Operation> {
    return await this.client.call("POST /v1/policies/{version}/gates", { path: { version }, body }, call);
  }

  async approve(version: string, body: api.Approval, call?: Call): Promise<api.StepTaken> {
    return await this.client.call("POST /v1/policies/{version}/approve", { path: { version }, body }, call);
  }

  /** Return a slot to the policy before. */
  async rollback(body: api.RollbackAsked, call?: Call): Promise<api.StepTaken> {
    return await this.client.call("POST /v1/policies/rollback", { body }, call);
  }
}

export class Canary {
  constructor(private readonly client: EtudeClient) {}

  /** What serves each slot, and the evidence of what is exposed. */
  async list(query: QueryOf<"GET /v1/canary"> = {}, call?: Call): Promise<api.SlotPage> {
    return await this.client.call("GET /v1/canary", { query }, call);
  }

  async show(slot: string, call?: Call): Promise<api.SlotStatus> {
    return await this.client.call("GET /v1/canary/{slot}", { path: { slot } }, call);
  }

  async start(body: api.CanaryAsked, call?: Call): Promise<api.ReleaseStarted> {
    return await this.client.call("POST /v1/canary", { body }, call);
  }

  /** Have a candidate decide next to the incumbent, without effect. */
  async shadow(body: api.ShadowAsked, call?: Call): Promise<api.ReleaseStarted> {
    return await this.client.call("POST /v1/shadow", { body }, call);
  }

  async pause(slot: string, body: api.Steered = {}, call?: Call): Promise<api.StepTaken> {
    return await this.client.call("POST /v1/canary/{slot}/pause", { path: { slot }, body }, call);
  }

  async resume(slot: string, body: api.Steered = {}, call?: Call): Promise<api.StepTaken> {
    return await this.client.call("POST /v1/canary/{slot}/resume", { path: { slot }, body }, call);
  }

  /** The incumbent serves all. */
  async abort(slot: string, body: api.Steered = {}, call?: Call): Promise<api.StepTaken> {
    return await this.client.call("POST /v1/canary/{slot}/abort", { path: { slot }, body }, call);
  }
}

export class Experiments {
  constructor(private readonly client: EtudeClient) {}

  async list(query: QueryOf<"GET /v1/experiments"> = {}, call?: Call): Promise<Answer<"GET /v1/experiments">> {
    return await this.client.call("GET /v1/experiments", { query }, call);
  }

  async start(body: api.ExperimentAsked, call?: Call): Promise<api.ReleaseStarted> {
    return await this.client.call("POST /v1/experiments", { body }, call);
  }

  async stop(slot: string, body: api.Steered = {}, call?: Call): Promise<api.StepTaken> {
    return await this.client.call("POST /v1/experiments/{slot}/stop", { path: { slot }, body }, call);
  }
}
