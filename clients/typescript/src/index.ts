/** Decisions of Etude from TypeScript and JavaScript. */
export * from "./errors.js";
export { EtudeClient, OneChoice } from "./client.js";
export type { Answer, Asking, ClientOptions, Report, Reported } from "./client.js";
export type { Call } from "./connection.js";
export type { Decided } from "./deciding.js";
export type { EtudeEvent, EventsOptions } from "./events.js";
export { feedbackRoute } from "./feedback-route.js";
export type { FeedbackRouteOptions } from "./feedback-route.js";
export type { Option } from "./offer.js";
export type { Entry, RefusedEntry } from "./outbox.js";
export { promptReward, promptScore } from "./prompt-reward.js";
export { RLInterface } from "./rl.js";
export type {
  Episode,
  PromptReward,
  RLOptions,
  SelectedAction,
  SelectedMutation,
  TrainingExperience,
  UpdateResult,
} from "./rl.js";
export { Task } from "./task.js";
export type { ChoiceOptions, Chosen, KnownOutcome, TaskOptions } from "./task.js";
export { RLTrainer } from "./trainer.js";
export type { TrainingProgress, TrainingStats, TrainOptions } from "./trainer.js";
export { VERSION } from "./version.js";
export type * as api from "./api.js";
