// Generated from the server's OpenAPI description by `python -m tests.openapi_types`: do not edit.

export interface Acknowledged {
  /** Name of the person; it stands next to the key. */
  by?: string | null;
}

/** What happened to a version; past tense, as in the audit log. */
export type Action = "advanced" | "alarmed" | "approved" | "deleted" | "gates_failed" | "gates_passed" | "gates_undecided" | "held" | "paused" | "promoted" | "registered" | "resumed" | "retired" | "rolled_back" | "started" | "stopped";

export interface Approval {
  /** Name of the person, for the audit log: it stands there next to the key. */
  by?: string | null;
  reason?: string;
}

/** A file or policy that a training job produced, identified by its content. */
export interface Artifact {
  /** Kind of artefact, such as policy, checkpoint or report. */
  name: string;
  /** Version of the policy, under which it is deployed and logged; null for a file. */
  version?: string | null;
  /** SHA-256 of the file; for a policy, of its manifest. */
  sha256: string;
  /** Size in bytes. */
  bytes?: number | null;
}

export interface AuditPage {
  rows: AuditRow[];
  /** Cursor of the next page; null at the end. */
  next: string | null;
}

export interface AuditRow {
  slot: string;
  /** Its `number` names it within the slot. */
  step: Entry;
}

/** Numbers that a raw value was compared with. */
export interface Baseline {
  /** Normalisation: by standard deviations from the mean, by the position between lowest and highest, or none. */
  method: "minmax" | "none" | "zscore";
  /** Number of earlier trajectories in the baseline. */
  count?: number;
  /** Mean of the earlier trajectories. */
  mean?: number;
  /** Their standard deviation. */
  std?: number;
  /** The lowest of them. */
  low?: number;
  /** The highest of them. */
  high?: number;
  /** Minimum standard deviation, and half the minimum distance of lowest and highest, that is compared with. */
  floor?: number;
}

/** How a candidate is released; what is null is as in the settings of the server. */
export interface CanaryAsked {
  /** A version that passed its gates: 16 hexadecimal digits, or the first ones. */
  version: string;
  /** auto chooses by the rules release.canary.strategies. */
  strategy?: "auto" | "canary" | "direct" | "experiment" | "shadow";
  /** Shares of the traffic in percent, such as [10, 25, 50, 100]. */
  stages?: number[] | null;
  /** Minimum duration of all stages together. */
  over_minutes?: number | null;
  /** Duration after which an undecided canary is held. */
  deadline_minutes?: number | null;
  /** Name of the person, for the audit log: it stands there next to the key. */
  by?: string | null;
}

/** What the closed units of a release say about its candidate. */
export interface CandidateEvidence {
  units: number;
  /** Units on the candidate. */
  candidates: number;
  /** Units whose window has not closed. */
  open: number;
  mean_incumbent: number | null;
  mean_candidate: number | null;
  /** Difference of the means with its confidence interval. */
  effect: Record<string, unknown> | null;
  log_e_values: Record<string, number>;
  verdict: string;
  reason: string;
  /** Each piece of evidence with the threshold it has to reach, as natural logarithms. */
  crossings: Record<string, unknown>[];
  /** Answers in shadow, and how many were as the incumbent's. */
  shadow: Record<string, unknown>;
  /** Differences between groups, on the candidate and on the incumbent. */
  fairness: Record<string, unknown>;
}

export interface Catalogue {
  task_types: TaskType[];
  workers?: Worker[];
}

/** When checkpoints are written. */
export interface Checkpointing {
  /** Gradient steps between checkpoints. */
  every_steps?: number;
  /** Number of checkpoints to keep. */
  keep?: number;
}

/** One part of a reward. */
export interface Component {
  /** Name, such as completion, efficiency, quality, feedback or execution. */
  name: string;
  /** Value before normalisation; null if unknown. */
  raw?: number | null;
  /** Value after normalisation, from 0 to 1 unless the definition says otherwise; null if unknown. */
  value?: number | null;
  /** Share of the total; the weight of unknown components is divided among the others. */
  weight?: number;
  /** Baseline that the raw value was compared with. */
  baseline?: Baseline | null;
  /** How the value was computed, in words. */
  why?: string;
}

/** One part of a reward. */
export interface ComponentDefinition {
  name: string;
  source: string;
  /** Weight relative to the other components; 0 holds it out. */
  weight: number;
  /** How its raw number is compared with the baseline; `none` leaves it unchanged. */
  normalise?: "minmax" | "none" | "zscore";
  /** Number of latest trajectories in the baseline. */
  window?: number;
  /** Minimum spread of the baseline, in units of the raw number: differences far below it do not count. */
  floor?: number;
  /** Only trajectories equal in these fields are compared. The policy is none of them: its gain would not show. */
  per?: ("agent" | "group" | "problem" | "tenant")[];
  /** Weights and units of a source that is a sum, in place of the defaults. */
  terms?: Record<string, number>;
}

/** Compute that a training job may use. */
export interface Compute {
  /** Device of the tensors; auto uses a GPU if there is one. */
  device?: "auto" | "cpu" | "cuda";
  /** Number of CPU cores. */
  cpus?: number;
  /** Number of GPUs. */
  gpus?: number;
  /** Maximum memory in GB; null is no limit. */
  memory_gb?: number | null;
  /** Minutes after which the job is stopped; null is no limit. */
  max_minutes?: number | null;
}

/** What a job used, all attempts together. */
export interface Cost {
  usd?: number;
  cpu_hours?: number;
  gpu_hours?: number;
  /** Hours for which a process ran. */
  wall_hours?: number;
}

/** Numbers of trajectories. */
export interface Counts {
  trajectories: number;
  decisions: number;
  splits: Record<string, number>;
  /** Trajectories by version of the behaviour policy; `unknown` if it is not logged. */
  policies: Record<string, number>;
  /** Trajectories by outcome: success, failure, unknown. */
  outcomes: Record<string, number>;
  /**
   * Trajectories by propensities. logged: every decision has one; unlogged: a decision has none, or there is none.
   */
  propensities: Record<string, number>;
}

/** A dataset of trajectories that match now. Where it is kept is a setting of the server. */
export interface DatasetAsked {
  /** Name of a new dataset: letters, digits, - and _. */
  name: string;
  problem: string;
  /** Conditions, such as `outcome=success and time>=2026-11-01`; empty is all. */
  where?: string;
  /** Version of the reward; null is the one in the settings. */
  reward_version?: number | null;
  /** context: a request is in one split only; time: the newest are the test split. */
  split?: "context" | "time";
  /** Give each outcome, policy or set of task types the same total weight. */
  balance?: "none" | "outcome" | "policy" | "task_type";
  /** Maximum number of trajectories; null is all. */
  limit?: number | null;
  /** Leave out trajectories with a decision without a logged propensity. */
  require_propensity?: boolean;
  /** Seed of the splits, and of the sample that `limit` takes. */
  seed?: number;
}

export interface DatasetConfig {
  split?: "context" | "time";
  shares?: [number, number, number];
  seed?: number;
  shard_size?: number;
  balance?: "none" | "outcome" | "policy" | "task_type";
  prioritise?: number;
  deduplicate?: boolean;
  limit?: number | null;
  min_confidence?: number;
  require_propensity?: boolean;
  cap?: number | null;
}

/** The manifest, which is written last: if it exists, the dataset is complete. */
export interface DatasetManifest {
  format?: number;
  id: string;
  content: string;
  problem: string;
  query: string;
  where: Where;
  version: number;
  definition: string | null;
  created: string;
  first: string;
  last: string;
  config: DatasetConfig;
  cuts: string[];
  counts: Counts;
  left_out: Record<string, number>;
  lineage: Lineage;
  url: string;
  shards: Shard[];
  erasures?: Erasure[];
  seal?: string;
}

export interface DatasetPage {
  rows: DatasetManifest[];
  /** Cursor of the next page; null at the end. */
  next: string | null;
}

/** A request for a decision. */
export interface DecisionAsked {
  /** `choice:NAME` for a choice of your own, or a problem: `workflow`, `allocation`. */
  problem: string;
  /**
   * What is known: a text, numbers, or an object of these; of a workflow its instruction, of an allocation the
   * observation.
   */
  context?: unknown;
  /** Of a choice: names, or objects with `name` and as far as known `description`, prices and other numbers. */
  options?: unknown[] | null;
  /** Option to take if the policy does not answer in time; null is the first one. */
  default?: unknown;
  /** What is wanted this time: weights and limits of cost and latency. */
  preferences?: Preferences;
  /** Progress of a workflow; null at its start. */
  state?: unknown;
  /** What is to be done, in words; null is the text of the context. */
  task?: string | null;
  /** Id of an earlier answer: another decision of the same task. */
  id?: string | null;
  /**
   * Id of the task, made by a caller who sends all of it to `/v1/trajectories` when it is over; null has the server
   * make one.
   */
  trajectory?: string | null;
  /** Milliseconds since the task began. */
  at_ms?: number;
  /** Conversation that the task belongs to: a release keeps all of it on one policy. */
  conversation?: string | null;
  /** User that the task is done for: an id that has no meaning elsewhere. */
  user?: string | null;
  /** Group of the user, for comparison between groups. */
  group?: string | null;
  /** Name of the agent. */
  agent?: string | null;
  /** Model that the agent uses, with its version. */
  model?: string | null;
  /** Milliseconds to wait for the policy; null is the server's setting. */
  timeout_ms?: number | null;
  /** Whether the task is stored; without it, nothing can be learned from the decision. */
  record?: boolean;
  /** Whether the answer says what is expected of each option. */
  explain?: boolean;
  /** Whether the answer has its log entries, for a caller who keeps the log of the task. */
  log?: boolean;
}

/** A decision. */
export interface DecisionGiven {
  /** Signed id of the task: give it with the outcome, and with further decisions of the task. */
  id: string;
  problem: string;
  /** What to do: the chosen option as it was offered, or the action of the problem. */
  action: unknown;
  /** Probability of the action; null where it is unknown. */
  propensity: number | null;
  /** Version of the policy that decided. */
  policy: string;
  /** Why the policy did not decide: loading, missing, slow, broken or no option; absent if it did. */
  fallback?: string | null;
  expected?: Record<string, Expected> | null;
  /** Of a plan: its probability, doubts and alternatives, where they are known. */
  proposal?: unknown;
  /** Cost of deciding in USD, where a paid service was asked. */
  cost_usd?: number | null;
  /** What is logged of the decision, if `log` asks for it. */
  logged?: LoggedDecision[] | null;
}

export interface DecisionsAsked {
  decisions: DecisionAsked[];
}

export interface DecisionsGiven {
  decisions: DecisionGiven[];
}

export interface Differences {
  version: string;
  other: string;
  /** Dotted field of the manifests → both values, null where one has none. */
  changed: Record<string, unknown[]>;
}

export interface Distribution {
  /** By mutation. */
  probabilities: Record<string, number>;
}

/** One step, with who took it and on what evidence. */
export interface Entry {
  /** Its place in the ledger, from 1. */
  number: number;
  time: string;
  /** `controller` and `coordinator` are automatic; a person is a name given by `--by` or the login name. */
  actor: string;
  action: Action;
  version?: string | null;
  reason?: string;
  /**
   * E-values with their thresholds, gate verdicts, the release's ledger and the number of its last entry: all that
   * is needed to recompute the step.
   */
  evidence?: Record<string, unknown>;
  /** After this step. */
  serving: Serving;
  /** State of every version of the slot after this step. */
  states: Record<string, State>;
  /** SHA-256 of the entry before, in hexadecimal; empty for the first. */
  before?: string;
}

/** A record that trajectories were erased, without their ids and users. */
export interface Erasure {
  time: string;
  trajectories: number;
  /** Hash of the content before the erasure. */
  before: string;
}

/** How the result of a training job is evaluated. */
export interface Evaluation {
  /** Share of the trajectories that is held out. */
  holdout?: number;
  /** Names of the metrics. */
  metrics?: string[];
  /** Minimum gain over the policy that it continues from. */
  minimum_gain?: number;
}

/** What a policy expects of an option. Standard errors say how sure it is of the mean, not how outcomes vary. */
export interface Expected {
  /** Expected score: what the policy maximises before cost. */
  score: number;
  /** Standard error of that expectation. */
  score_se: number;
  /** Probability of success; null where it was never reported. */
  success?: number | null;
  quality?: number | null;
  cost_usd?: number | null;
  latency_ms?: number | null;
  /** Score and cost under the preferences of the request. */
  utility?: number | null;
  /** Probability with which it is chosen. */
  probability?: number;
  /** Why it is not eligible; null if it is. */
  masked?: string | null;
  /**
   * Effective number of past outcomes of this option: fewer than there are where some count more than others, by
   * their propensities or because old ones fade; 0 for a new option.
   */
  decisions?: number;
}

export interface ExperienceStored {
  stored?: true;
  /** Steps that wait for the next update. */
  buffer_size: number;
}

/** Two versions of a slot, of which one serves. */
export interface ExperimentAsked {
  a: string;
  b: string;
  /** Share of the traffic that `b` gets. */
  share_of_b?: number;
  /** Name of the person, for the audit log: it stands there next to the key. */
  by?: string | null;
}

/** A reward with all details. */
export interface Explanation {
  reward: Reward;
  parts: Part[];
  /** Unknown components, and why they are unknown. */
  missing: Record<string, string>;
  history: Revision[];
  /** Versions under which this trajectory has rewards. */
  versions: number[];
}

/** A candidate next to the incumbent. A serving process needs nothing else to assign a unit to an arm. */
export interface Exposure {
  /** Id of the release. */
  release: string;
  candidate: string;
  mode: Mode;
  /**
   * Probability that a new unit is assigned to the candidate; 0 in shadow mode and while paused: then no unit
   * enters the evidence.
   */
  share: number;
  /** Index of the current stage of a canary. */
  stage?: number;
  /** Paused: no unit is assigned. Held: a person decides; it may still be rolled back. */
  status?: "held" | "paused" | "running";
  /** What is assigned to an arm as a whole. */
  unit?: "conversation" | "trajectory";
}

/** A person's rating of a trajectory, after it ended. */
export interface Feedback {
  type: "agent.rl.feedback.v1";
  /** Id of this event: a second event with this id changes nothing if its content is equal, else it is refused. */
  id: string;
  /** Time of the event, with its time zone. */
  time: string;
  /** Id of the trajectory that is rated. */
  trajectory_id: string;
  /** User who gave the rating. */
  user?: string | null;
  /** Good or bad. */
  thumbs?: "down" | "up" | null;
  /** From 1, bad, to 5, very good. */
  stars?: number | null;
  /** Comment in words. */
  comment?: string | null;
}

/** The outcome of a task, a rating of it, or both. */
export interface FeedbackGiven {
  /** Signed id of the answer. */
  id: string;
  /** Whether the task succeeded; null says that it is over and not known. */
  success?: boolean | null;
  /** Cost of the whole task in USD. */
  cost_usd?: number | null;
  /** Duration of the whole task in milliseconds. */
  latency_ms?: number | null;
  /** Scores of the result by name, from 0 to 1. */
  quality?: Record<string, number> | null;
  /** Error message, if the task failed. */
  error?: string | null;
  /** A person's rating: good or bad. */
  thumbs?: "down" | "up" | null;
  /** A person's rating from 1, bad, to 5, very good. */
  stars?: number | null;
  comment?: string | null;
  /** User who gave the rating. */
  user?: string | null;
  /** Id of the rating, made by the caller: one that is sent again is stored once. Null has the server make one. */
  event?: string | null;
  /** Time of the rating; null is now. */
  time?: string | null;
}

/** What was stored; nothing of users who opted out. */
export interface FeedbackStored {
  trajectory: string;
  outcome: boolean;
  rating: boolean;
}

/** What is wrong with a field of a request. */
export interface FieldError {
  field: string;
  detail: string;
}

export interface GatesAsked {
  /** Seed of fuzzed requests and samples. */
  seed?: number;
}

/** The newest report of the gates on a version. */
export interface GatesReport {
  version: string;
  slot: string;
  /** pass, fail or cannot tell. */
  verdict: string;
  report: Record<string, unknown>;
}

export interface Health {
  status?: "ok";
  version: string;
}

/** One training: what was requested, and how far it is. */
export interface Job {
  id: string;
  /** The slot that its policy is a candidate for. */
  slot: string;
  /** What is to be trained: problem, method, trigger, priority, settings, limits. */
  request: TrainingRequest;
  created: string;
  state?: JobState;
  /** Number of claims; the number of a claim fences off the owners of earlier ones. */
  attempts?: number;
  /** Number of failures since it was queued by a person or a trigger; a claim that was lost is none. */
  failures?: number;
  lease?: Lease | null;
  /** When a failed job is tried again. */
  not_before?: string | null;
  cancel_requested?: boolean;
  progress?: Progress;
  /** Folder or URL of its dataset. */
  dataset?: string;
  dataset_id?: string;
  /** Start of the newest trajectory in its dataset: later ones are new. */
  data_until?: string | null;
  /** Its run folder. */
  run?: string;
  /** The policy that it trained. */
  version?: string | null;
  cost?: Cost;
  /** Why its last attempt failed. */
  error?: JobError | null;
  /** When it was first claimed. */
  started?: string | null;
  ended?: string | null;
  stage?: Stage | null;
  stage_note?: string;
  stage_time?: string | null;
}

/** A training job. */
export interface JobAsked {
  /** Name of the problem. */
  problem: string;
  /** Learning method, one of the problem's. */
  method?: string;
  /** Slot to train; null is the problem's only one. */
  slot?: string | null;
  /** Algorithm of the method, such as ppo; null is the method's. */
  algorithm?: string | null;
  /** Trajectories to learn from, such as `time>=2026-11-01`; empty is all. */
  where?: string;
  /** Registered version to continue from; null is the incumbent. */
  policy?: string | null;
  /** Settings by dotted key, such as `ppo.lr`. */
  hyperparameters?: Record<string, unknown>;
  /** From 0 to 9; a job of priority 9 runs first. */
  priority?: number;
}

/** Why a training job failed. */
export interface JobError {
  /** Class of the error. */
  kind: string;
  /** What went wrong, and what to do. */
  message: string;
  /** Whether a retry may succeed. */
  retryable?: boolean;
}

export interface JobPage {
  rows: Job[];
  /** Cursor of the next page; null at the end. */
  next: string | null;
}

export type JobState = "cancelled" | "completed" | "failed" | "queued" | "running";

/** The newest step of a slot. */
export interface LastStep {
  action: string;
  time: string;
  actor: string;
  reason: string;
}

/** What learned from a trajectory. */
export interface LearnedFrom {
  trajectory: string;
  datasets: string[];
  /** Each with its `version`, `slot` and `state`. */
  versions: Record<string, string>[];
}

/** Who runs a job. */
export interface Lease {
  owner: string;
  /** Seconds until another owner may claim the job, when it was read; at most 0 once it has expired. */
  left_s: number;
}

export interface Lineage {
  /** URL of the store, without secrets. */
  source: string;
  /** Id of the dataset that it continues, if any. */
  parent?: string | null;
  /** Version of Etude that made it. */
  etude: string;
}

export interface LineageStep {
  version: string;
  /** Hashes of the datasets and files that it learned from. */
  data: string[];
  /** Those that are known here. */
  datasets: UsedDataset[];
}

export interface LoadAsked {
  /** Version: 16 hexadecimal digits, or at least the first four. */
  version: string;
}

export interface Loaded {
  loaded?: true;
  version: string;
}

/** Everything needed to judge a later policy on a past decision. */
export interface LoggedDecision {
  /** Name of the problem: workflow, allocation, prompt, or choice:NAME for a choice of your own. */
  problem: string;
  /** Milliseconds since the trajectory began. */
  at_ms?: number;
  /** What was known when the decision was made, beyond the task. */
  context?: unknown;
  /** What could be chosen: a list of options or actions, or the problem's own description of them. */
  eligible?: unknown;
  /** What was chosen: of a choice of your own, the name of the option. */
  action?: unknown;
  /** Probability of the action; null where it is unknown, for example when a person chose. */
  propensity?: number | null;
  /** Version of the behaviour policy, which made the decision. */
  policy: string;
}

/** How a candidate is exposed. */
export type Mode = "canary" | "experiment" | "holdback" | "shadow";

export interface ModelPage {
  rows: TrainedModel[];
  /** Cursor of the next page; null at the end. */
  next: string | null;
}

/** No fields. */
export interface Nothing {
}

/** Something that people should know. */
export interface Notice {
  id: string;
  kind: NoticeKind;
  slot: string;
  text: string;
  time: string;
  job?: string | null;
  version?: string | null;
  /** URLs that accepted it, since its last escalation. */
  delivered?: string[];
  /** Deliveries in a row that failed. */
  failures?: number;
  /** When a delivery last failed. */
  tried?: string | null;
  escalations?: number;
  escalated?: string | null;
  acknowledged_by?: string | null;
  acknowledged?: string | null;
}

export type NoticeKind = "alarm" | "failure" | "promotion" | "refusal" | "rollback";

export interface NoticePage {
  rows: Notice[];
  /** Cursor of the next page; null at the end. */
  next: string | null;
}

/** What went wrong, in OpenAI's form. */
export interface OpenAIError {
  error: OpenAIErrorDetail;
}

export interface OpenAIErrorDetail {
  message: string;
  type: string;
  param: string | null;
  code: string | null;
}

/** A model that callers may name, or a choice among them. */
export interface OpenAIModel {
  id: string;
  object: string;
  created: number;
  owned_by: string;
}

export interface OpenAIModels {
  object: string;
  data: OpenAIModel[];
}

/** Work that takes longer than a request, and runs as a process of its own. */
export interface Operation {
  id: string;
  kind: "dataset" | "gates" | "rescore";
  /** The version, the dataset or the reward definition. */
  about: string;
  state: OperationState;
  /** Who asked for it. */
  by: string;
  created: string;
  started?: string | null;
  ended?: string | null;
  /** Why it failed. */
  error?: string;
  /** Route that shows its result once it is completed. */
  result?: string;
}

export interface OperationPage {
  rows: Operation[];
  /** Cursor of the next page; null at the end. */
  next: string | null;
}

export type OperationState = "completed" | "failed" | "queued" | "running";

/** How the task ended. */
export interface Outcome {
  /** Whether the task succeeded; null if unknown. */
  success?: boolean | null;
  /** Who said so: verifier, judge, person, or self (all subtasks of its own plan ended well); null if unknown. */
  success_by?: "judge" | "person" | "self" | "verifier" | null;
  /** Why the task ended. */
  ended?: "aborted" | "cancelled" | "deadline" | "done" | "failed";
  /** Error message, if the task did not end normally. */
  error?: string | null;
  /** Cost of the whole task in USD; null if unknown. */
  cost_usd?: number | null;
  /** Duration of the whole task in milliseconds; null if unknown. */
  latency_ms?: number | null;
  /** Number of subtasks. */
  subtasks?: number | null;
  /** Number of subtasks that were done. */
  subtasks_done?: number | null;
  /** Scores of the result by name, such as tests passed, linter or judge. */
  quality?: Record<string, number> | null;
}

/** A component and its contribution to the total. */
export interface Part {
  component: Component;
  /** Weight before that of unknown components was divided; null if the definition is no longer known. */
  weight_before: number | null;
  /** Contribution to the total. */
  contribution: number;
}

/** A version with all that is known about it. */
export interface PolicyDetail {
  about: VersionRow;
  /** Null if its files were deleted by retention. */
  manifest: PolicyManifest | null;
  /** Reports and logs that are kept with it. */
  attachments: string[];
  history: Entry[];
}

export interface PolicyLineage {
  /** The version, and those before it that it continues. */
  versions: LineageStep[];
  /** Versions that continue it. */
  children: string[];
}

/** What a policy is, where it comes from, and the SHA-256 of every file that belongs to it. */
export interface PolicyManifest {
  format?: number;
  problem: string;
  method: string;
  step: number;
  score?: number | null;
  settings?: Record<string, unknown>;
  details?: Record<string, unknown>;
  encoder?: string | null;
  catalogue?: string | null;
  data?: string[];
  parent?: string | null;
  code: string;
  files: Record<string, string>;
}

export interface PolicyPage {
  rows: VersionRow[];
  /** Cursor of the next page; null at the end. */
  next: string | null;
}

/** What the caller of a choice wants this time. One policy serves them all. */
export interface Preferences {
  /** Weight of the score against cost: 1 is the score alone, 0 cost alone; null as the policy was trained. */
  quality_weight?: number | null;
  /** Options that are expected to cost more are not eligible. */
  max_cost_usd?: number | null;
  /** Options that are expected to take longer are not eligible. */
  max_latency_ms?: number | null;
  /** Options that list `regions` without this one are not eligible. */
  region?: string | null;
  /** Names of the only options that are eligible; null allows all. */
  allowed?: string[] | null;
}

/** What went wrong, and what to do. */
export interface Problem {
  title: string;
  status: number;
  detail: string;
  type?: string;
  /** Give this to whoever runs the server: it is in the server's log. */
  request_id?: string;
  errors?: FieldError[];
}

/** Progress of a training job. */
export interface Progress {
  /** Epochs done. */
  epoch?: number;
  /** Epochs planned. */
  epochs?: number;
  /** Gradient steps done. */
  step?: number;
  /** Gradient steps planned. */
  steps?: number;
  /** Share of the job that is done. */
  share?: number;
  /** Estimated seconds until the job ends. */
  eta_s?: number | null;
}

/** A person's opinion of a result. */
export interface Rating {
  /** Good or bad. */
  thumbs?: "down" | "up" | null;
  /** From 1, bad, to 5, very good. */
  stars?: number | null;
  /** Comment in words. */
  comment?: string | null;
}

export interface Ready {
  status: "not ready" | "ready";
  /** By what was checked: `ok`, or what is wrong and what to do. */
  checks: Record<string, string>;
  /** What is wrong without stopping decisions: `loop` and `background`, with what to do. */
  warnings?: Record<string, string>;
}

/** What was checked about the record of a slot. */
export interface RecordChecked {
  slot: string;
  unaltered: boolean;
  /** What is wrong; empty if nothing is. */
  detail: string;
  entries?: number;
  releases?: number;
  units?: number;
  /** Decisions that were computed again from their units. */
  replayed?: number;
  /** Hash of the newest entry: remember it, and give it next time. */
  head?: string;
}

/** How a release began. */
export interface ReleaseStarted {
  slot: string;
  strategy: string;
  /** How, and how long it takes at the present traffic. */
  sentence: string;
  step: Entry;
}

/** A step, computed again from the units that it rests on. */
export interface Replayed {
  slot: string;
  number: number;
  units: number;
  equal: boolean;
  /** Name → what was logged and what was computed, as natural logarithms. */
  log_e_values: Record<string, (number | null)[]>;
}

export interface RescoreAsked {
  /** Conditions, such as `problem=choice:model`; empty is the whole history. */
  where?: string;
}

export interface Revision {
  revision: number;
  time: string;
  reason: string;
  total: number;
  confidence: number;
}

/** A reward of one trajectory under one version of the definition; a later `revision` replaces an earlier one. */
export interface Reward {
  type: "agent.rl.reward.v1";
  /** Id of this event: a second event with this id changes nothing if its content is equal, else it is refused. */
  id: string;
  /** Time of the event, with its time zone. */
  time: string;
  /** Id of the trajectory. */
  trajectory_id: string;
  /** Version of the reward definition. */
  version: number;
  /** Hash of the reward definition. */
  definition: string;
  /** Number of the revision; late feedback increases it. */
  revision?: number;
  /** Number that policies learn from. */
  total: number;
  /** Share of the definition's weight whose components are known. */
  confidence: number;
  /** All components, including unknown ones. */
  components?: Component[];
  /** Why the reward was computed. */
  reason?: "feedback" | "ingested" | "rescored";
}

/** The components of a reward. A version never changes: other content needs another version. */
export interface RewardDefinition {
  version: number;
  name: string;
  description?: string;
  components: ComponentDefinition[];
  /** Lowest and highest reward that counts in a release, where a component has no bounds of its own. */
  bounds?: [number, number] | null;
}

export interface RewardPage {
  rows: RewardRow[];
  /** Cursor of the next page; null at the end. */
  next: string | null;
}

/** A reward definition. */
export interface RewardRow {
  version: number;
  hash: string;
  definition: RewardDefinition;
  /** Weight of each component, as a share of all. */
  shares: Record<string, number>;
  /** Whether new tasks are rewarded under it. */
  in_use: boolean;
}

/** A definition, and the history under it. */
export interface RewardStatus {
  reward: RewardRow;
  /** In the store. */
  trajectories: number;
  /** Of them have a reward of this version. */
  rewarded: number;
  mean: number | null;
  confidence: number | null;
}

export interface RollbackAsked {
  slot: string;
  /** Name of the person, for the audit log: it stands there next to the key. */
  by?: string | null;
  reason?: string;
}

export interface SaveAsked {
  /** What the caller calls it, for the record of the slot. */
  name?: string;
}

export interface Saved {
  /** In the registry: `POST /load` takes it, and a release may begin with it. */
  version: string;
}

/** A prompt, or its embedding. */
export interface Seen {
  embedding?: number[] | null;
  prompt?: string | null;
}

export interface SelectAsked {
  embedding?: number[] | null;
  prompt?: string | null;
  /** Take the most probable mutation; else one is sampled. */
  greedy?: boolean;
  /** The same seed samples the same; absent is another one for each request. */
  seed?: number | null;
}

/** A mutation, and how it was chosen. */
export interface Selected {
  /** Number of the mutation. */
  action: number;
  mutation: string;
  /** Natural logarithm of the propensity. */
  log_prob: number;
  /** Expected sum of rewards from here on. */
  value: number;
  propensity: number;
  /** By mutation; those that make no sense for the prompt have 0. */
  probabilities: Record<string, number>;
  /** The prompt after the mutation, where a prompt was given. */
  prompt?: string | null;
}

/** Which policies serve a slot now. */
export interface Serving {
  /** Null until the first policy is promoted. */
  incumbent?: string | null;
  /** The policy that a rollback of the incumbent returns to. */
  previous?: string | null;
  exposure?: Exposure | null;
}

/** A step that the caller took: what was seen, what was done, and what it brought. */
export interface SessionStep {
  embedding?: number[] | null;
  /** Instead of its embedding. */
  prompt?: string | null;
  action: number;
  reward: number;
  /** As `select_action` gave it; without it, that of the policy now. */
  log_prob?: number | null;
  /** As `select_action` gave it; without it, that of the policy now. */
  value?: number | null;
  /** Whether the episode ends with this step. */
  done: boolean;
  /** What came after the step, where it is the last one before an update and the episode goes on. */
  next_embedding?: number[] | null;
}

export interface ShadowAsked {
  /** The candidate: 16 hexadecimal digits, or the first ones. */
  version: string;
  /** Name of the person, for the audit log: it stands there next to the key. */
  by?: string | null;
}

/** A blob with a line per trajectory; trajectories of one context are in the same shard. */
export interface Shard {
  key: string;
  split: string;
  trajectories: number;
  bytes: number;
  sha256: string;
}

export interface SlotPage {
  rows: SlotStatus[];
  /** Cursor of the next page; null at the end. */
  next: string | null;
}

/** What serves a slot, and how its release stands. */
export interface SlotStatus {
  slot: string;
  serving: Serving;
  /** What was due and done just now. */
  happened: string[];
  last: LastStep;
  /** Of the candidate that is exposed now; absent without one. */
  evidence?: CandidateEvidence | null;
}

/** How far the policy of a completed job came; the registry has the rest. */
export type Stage = "passed" | "refused" | "registered" | "started" | "superseded" | "trained" | "undecided";

/** The state of a version in a slot. */
export type State = "exposed" | "passed" | "previous" | "refused" | "registered" | "retired" | "rolled_back" | "serving";

/** Of the whole installation, except for requests, which are those of this process. */
export interface Statistics {
  uptime_s: number;
  /** By status. */
  requests: Record<string, number>;
  /** Tasks that wait for their outcome. */
  open_tasks: number;
  /** Of this process: trajectories from traces, and what of OTLP requests was not mapped, by reason. */
  telemetry: Record<string, number>;
  trajectories: number;
  decisions: number;
  mean_reward: number | null;
}

export interface StatusPage {
  rows: TrainingStatus[];
  /** Cursor of the next page; null at the end. */
  next: string | null;
}

export interface Steered {
  /** Name of the person, for the audit log: it stands there next to the key. */
  by?: string | null;
  reason?: string;
}

/** A step of a slot's record. */
export interface StepTaken {
  slot: string;
  step: Entry;
}

/** A kind of subtask. */
export interface TaskType {
  name: string;
  description?: string;
}

/** A trained policy that is registered. */
export interface TrainedModel {
  version: string;
  slot: string;
  state: State;
  serves: boolean;
}

/** A request for a training job. */
export interface TrainingRequest {
  type: "agent.rl.training.request.v1";
  /** Id of this event: a second event with this id changes nothing if its content is equal, else it is refused. */
  id: string;
  /** Time of the event, with its time zone. */
  time: string;
  /** Name of the problem. */
  problem: string;
  /**
   * Learning method, one of the problem's learners: `practise` in a simulated world, `imitate` expert examples,
   * learn `from-logs` of decisions and rewards, `fit` the outcomes of every option, or one of the problem's own.
   */
  method?: string;
  /** Algorithm of the method, such as ppo, rloo or dpo; null is the method's default. */
  algorithm?: string | null;
  /** Query for the trajectories to learn from. */
  dataset?: Where;
  /** Version of the reward definition. */
  reward_version?: number;
  /** Policy version to continue from; null starts from scratch. */
  policy?: string | null;
  /** Settings of the algorithm that differ from its defaults. */
  hyperparameters?: Record<string, unknown>;
  /** Compute that the job may use. */
  compute?: Compute;
  /** How the result of a training job is evaluated. */
  evaluation?: Evaluation;
  /** When checkpoints are written. */
  checkpointing?: Checkpointing;
  /**
   * What caused the request: enough new trajectories, a schedule, drifted inputs or rewards, worse feedback, a policy
   * regression, or a person.
   */
  trigger?: "drift" | "feedback" | "manual" | "regression" | "schedule" | "threshold";
  /** Priority from 0 to 9; a job of priority 9 runs first. */
  priority?: number;
  /** Name of the person or service that sent the request. */
  requested_by?: string | null;
}

/** The status of a training job. */
export interface TrainingStatus {
  type: "agent.rl.training.status.v1";
  /** Id of this event: a second event with this id changes nothing if its content is equal, else it is refused. */
  id: string;
  /** Time of the event, with its time zone. */
  time: string;
  /** Id of the job. */
  job_id: string;
  /** Id of the TrainingRequest, if there is one. */
  request_id?: string | null;
  /** Name of the problem. */
  problem: string;
  /** Status of the job. */
  status: "cancelled" | "completed" | "failed" | "queued" | "running";
  /** Progress of the job. */
  progress?: Progress;
  /** Current training metrics, such as loss, reward and KL divergence. */
  metrics?: Record<string, number>;
  /** Metrics on the held-out trajectories. */
  evaluation?: Record<string, number>;
  /** Artefacts produced so far. */
  artifacts?: Artifact[];
  /** Why the job failed. */
  error?: JobError | null;
}

export interface TrajectoriesGiven {
  /** Finished tasks, as the schema `agent.rl.trajectory.v1` has them. One that is sent again changes nothing. */
  trajectories: Trajectory[];
}

export interface TrajectoriesStored {
  /** Ids of what is on disk now, in the order of the request. Those of a tenant have its mark at their end. */
  stored: string[];
}

/** A task from start to end; `time` is its start. */
export interface Trajectory {
  type: "agent.rl.trajectory.v1";
  /** Id of this event: a second event with this id changes nothing if its content is equal, else it is refused. */
  id: string;
  /** Time of the event, with its time zone. */
  time: string;
  /** Description of the task, in words. */
  task: string;
  /** Problem of its first decision: its name, choice:NAME for a choice of your own, `task` without a decision. */
  problem: string;
  /** Version of the policy that decided, if any. */
  policy?: string | null;
  /** Name of the agent. */
  agent?: string | null;
  /** Model that the agent uses, with its version. */
  model?: string | null;
  /** User that the task was done for: an id that has no meaning elsewhere. */
  user?: string | null;
  /** Group of the user, for comparison between groups. */
  group?: string | null;
  /** Tenant whose redaction rules apply. */
  tenant?: string | null;
  /** Decisions in the order in which they were made. */
  decisions?: LoggedDecision[];
  /** Turns in order. */
  turns?: Turn[];
  /** How it ended. */
  outcome?: Outcome;
  /** Ratings given before the task ended. */
  feedback?: Rating[];
  /** Number of values per kind that redaction replaced by placeholders. */
  redacted?: Record<string, number> | null;
  /** Any other names and values. */
  metadata?: Record<string, unknown> | null;
}

/** Everything that is stored about one trajectory. */
export interface TrajectoryDetail {
  trajectory: Trajectory;
  /** Feedback by time. */
  feedback: Feedback[];
  /** Rewards by version and revision; a later one does not remove an earlier one. */
  rewards: Reward[];
}

export interface TrajectoryPage {
  rows: TrajectorySummary[];
  /** Cursor of the next page; null at the end. */
  next: string | null;
}

export interface TrajectorySummary {
  id: string;
  time: string;
  problem: string;
  policy: string | null;
  agent: string | null;
  user: string | null;
  group: string | null;
  tenant: string | null;
  success: boolean | null;
  cost_usd: number | null;
  latency_ms: number | null;
  context: string;
  decisions: number;
  turns: number;
  size: number;
  reward: number | null;
  confidence: number | null;
  feedback: number | null;
}

/** One interaction of the agent with its environment. */
export interface Turn {
  /** Milliseconds since the trajectory began. */
  at_ms?: number;
  /** What the agent saw. */
  observation?: unknown;
  /** What the agent did. */
  action?: unknown;
  /** Result of the action. */
  result?: unknown;
  /** Error message, if the action failed. */
  error?: string | null;
  /** Cost in USD; null if unknown. */
  cost_usd?: number | null;
  /** Duration in milliseconds; null if unknown. */
  latency_ms?: number | null;
}

/** What an update did; numbers are null if there was too little experience for one. */
export interface Updated {
  updated: boolean;
  policy_loss?: number | null;
  value_loss?: number | null;
  entropy?: number | null;
  approx_kl?: number | null;
  clip_fraction?: number | null;
  epochs?: number | null;
  /** Steps that wait for the next update. */
  buffer_size: number;
}

export interface UsedDataset {
  id: string;
  content: string;
  trajectories: number;
  url: string;
}

export interface Verified {
  version: string;
  unaltered: boolean;
  /** Files that were compared with the signed manifest. */
  files: number;
  /** What is wrong; empty if nothing is. */
  detail: string;
}

/** A version in its slot, with the last step about it. */
export interface VersionRow {
  slot: string;
  version: string;
  state: State;
  since: string;
  /** Who took the step. */
  by: string;
  reason: string;
}

/** Conditions that must all hold; a field that is null is no condition. */
export interface Where {
  /** Name of the problem. */
  problem?: string | null;
  /** Version of the policy that decided. */
  policy?: string | null;
  /** Name of the agent. */
  agent?: string | null;
  /** User that the task was done for. */
  user?: string | null;
  /** Group of the user. */
  group?: string | null;
  /** Tenant whose redaction rules applied. */
  tenant?: string | null;
  /** Outcome of the task. */
  outcome?: "failure" | "success" | "unknown" | null;
  /** Earliest start, inclusive. */
  since?: string | null;
  /** Latest start, exclusive. */
  until?: string | null;
  /** Minimum reward. */
  min_reward?: number | null;
  /** Maximum reward. */
  max_reward?: number | null;
  /** Minimum confidence of the reward. */
  min_confidence?: number | null;
  /** Whether the trajectory has a rating. */
  feedback?: boolean | null;
}

/** An LLM, a tool, an agent or a person that does subtasks, with its price, latency and success rate. */
export interface Worker {
  name: string;
  description?: string;
  task_types?: string[] | null;
  usd_per_call?: number;
  usd_per_mtok_in?: number;
  usd_per_mtok_out?: number;
  latency_ms?: number;
  success_rate?: number | null;
  available?: boolean;
  quota?: number | null;
  size?: string;
}

/** What each route takes and gives. */
export interface Routes {
  /** Show the policy */
  "POST /get_distribution": { body: Seen; answer: Distribution; };
  /** Whether the process lives */
  "GET /health": { answer: Health; };
  /** Continue with a saved policy */
  "POST /load": { body: LoadAsked; answer: Loaded; };
  /** Whether decisions can be made and stored */
  "GET /ready": { answer: Ready; };
  /** Save the policy */
  "POST /save": { body: SaveAsked; answer: Saved; };
  /** Select a mutation */
  "POST /select_action": { body: SelectAsked; answer: Selected; };
  /** What was served and stored */
  "GET /stats": { answer: Statistics; };
  /** Store a step */
  "POST /store_experience": { body: SessionStep; answer: ExperienceStored; };
  /** Learn from the stored steps */
  "POST /update": { body: Nothing; answer: Updated; };
  /** List steps */
  "GET /v1/audit": { query: { slot?: string | null; cursor?: string | null; limit?: number; }; answer: AuditPage; };
  /** Verify the record of a slot */
  "GET /v1/audit/{slot}/verification": { path: { slot: string; }; query: { head?: string | null; }; answer: RecordChecked; };
  /** Replay a decision */
  "GET /v1/audit/{slot}/{number}/replay": { path: { slot: string; number: number; }; answer: Replayed; };
  /** List what serves, and the evidence */
  "GET /v1/canary": { query: { cursor?: string | null; limit?: number; }; answer: SlotPage; };
  /** Start a release */
  "POST /v1/canary": { body: CanaryAsked; answer: ReleaseStarted; };
  /** Show what serves a slot */
  "GET /v1/canary/{slot}": { path: { slot: string; }; answer: SlotStatus; };
  /** Abort a release */
  "POST /v1/canary/{slot}/abort": { path: { slot: string; }; body: Steered; answer: StepTaken; };
  /** Pause a release */
  "POST /v1/canary/{slot}/pause": { path: { slot: string; }; body: Steered; answer: StepTaken; };
  /** Resume a release */
  "POST /v1/canary/{slot}/resume": { path: { slot: string; }; body: Steered; answer: StepTaken; };
  /** Show the catalogue */
  "GET /v1/catalogue": { answer: Catalogue; };
  /** List datasets */
  "GET /v1/datasets": { query: { problem?: string | null; cursor?: string | null; limit?: number; }; answer: DatasetPage; };
  /** Create a dataset */
  "POST /v1/datasets": { body: DatasetAsked; answer: Operation; };
  /** Show a dataset */
  "GET /v1/datasets/{id}": { path: { id: string; }; answer: DatasetManifest; };
  /** Decide */
  "POST /v1/decisions": { body: DecisionAsked; answer: DecisionGiven; };
  /** Decide many */
  "POST /v1/decisions/batch": { body: DecisionsAsked; answer: DecisionsGiven; };
  /** List experiments */
  "GET /v1/experiments": { query: { cursor?: string | null; limit?: number; }; answer: SlotPage; };
  /** Start an experiment */
  "POST /v1/experiments": { body: ExperimentAsked; answer: ReleaseStarted; };
  /** Stop an experiment */
  "POST /v1/experiments/{slot}/stop": { path: { slot: string; }; body: Steered; answer: StepTaken; };
  /** Report an outcome or a rating */
  "POST /v1/feedback": { body: FeedbackGiven; answer: FeedbackStored; };
  /** List jobs */
  "GET /v1/jobs": { query: { slot?: string | null; status?: JobState | null; cursor?: string | null; limit?: number; }; answer: JobPage; };
  /** Submit a job */
  "POST /v1/jobs": { body: JobAsked; answer: Job; };
  /** Show a job */
  "GET /v1/jobs/{id}": { path: { id: string; }; answer: Job; };
  /** Cancel a job */
  "POST /v1/jobs/{id}/cancel": { path: { id: string; }; answer: Job; };
  /** Retry a job */
  "POST /v1/jobs/{id}/retry": { path: { id: string; }; answer: Job; };
  /** Models that may be named */
  "GET /v1/models": { answer: OpenAIModels; };
  /** One model */
  "GET /v1/models/{id}": { path: { id: string; }; answer: OpenAIModel; };
  /** List notices */
  "GET /v1/notices": { query: { cursor?: string | null; limit?: number; }; answer: NoticePage; };
  /** Acknowledge a notice */
  "POST /v1/notices/{id}/acknowledge": { path: { id: string; }; body: Acknowledged; answer: Notice; };
  /** List operations */
  "GET /v1/operations": { query: { cursor?: string | null; limit?: number; }; answer: OperationPage; };
  /** Show an operation */
  "GET /v1/operations/{id}": { path: { id: string; }; answer: Operation; };
  /** List policies */
  "GET /v1/policies": { query: { slot?: string | null; status?: State | null; cursor?: string | null; limit?: number; }; answer: PolicyPage; };
  /** Roll a slot back */
  "POST /v1/policies/rollback": { body: RollbackAsked; answer: StepTaken; };
  /** Show a policy */
  "GET /v1/policies/{version}": { path: { version: string; }; answer: PolicyDetail; };
  /** Approve a policy */
  "POST /v1/policies/{version}/approve": { path: { version: string; }; body: Approval; answer: StepTaken; };
  /** Compare two policies */
  "GET /v1/policies/{version}/diff/{other}": { path: { version: string; other: string; }; answer: Differences; };
  /** Show the report of the gates */
  "GET /v1/policies/{version}/gates": { path: { version: string; }; answer: GatesReport; };
  /** Run the gates */
  "POST /v1/policies/{version}/gates": { path: { version: string; }; body: GatesAsked; answer: Operation; };
  /** Show what a policy learned from */
  "GET /v1/policies/{version}/lineage": { path: { version: string; }; answer: PolicyLineage; };
  /** Verify a policy */
  "GET /v1/policies/{version}/verification": { path: { version: string; }; answer: Verified; };
  /** List reward definitions */
  "GET /v1/rewards": { query: { cursor?: string | null; limit?: number; }; answer: RewardPage; };
  /** Show a reward definition */
  "GET /v1/rewards/{version}": { path: { version: number; }; answer: RewardStatus; };
  /** Reward the history again */
  "POST /v1/rewards/{version}/rescore": { path: { version: number; }; body: RescoreAsked; answer: Operation; };
  /** Start a shadow */
  "POST /v1/shadow": { body: ShadowAsked; answer: ReleaseStarted; };
  /** List trained models */
  "GET /v1/training/models": { query: { cursor?: string | null; limit?: number; }; answer: ModelPage; };
  /** Request a training */
  "POST /v1/training/requests": { body: TrainingRequest; answer: TrainingStatus; };
  /** List trainings */
  "GET /v1/training/status": { query: { slot?: string | null; status?: JobState | null; cursor?: string | null; limit?: number; }; answer: StatusPage; };
  /** Show a training */
  "GET /v1/training/status/{id}": { path: { id: string; }; answer: TrainingStatus; };
  /** List stored tasks */
  "GET /v1/trajectories": { query: { where?: string; cursor?: string | null; limit?: number; }; answer: TrajectoryPage; };
  /** Send finished tasks */
  "POST /v1/trajectories": { body: TrajectoriesGiven; answer: TrajectoriesStored; };
  /** One stored task */
  "GET /v1/trajectories/{id}": { path: { id: string; }; answer: TrajectoryDetail; };
  /** Show what learned from a task */
  "GET /v1/trajectories/{id}/policies": { path: { id: string; }; answer: LearnedFrom; };
  /** Explain a reward */
  "GET /v1/trajectories/{id}/reward": { path: { id: string; }; query: { version?: number | null; }; answer: Explanation; };
}
