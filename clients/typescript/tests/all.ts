/** All tests in one process: they share a server. */
import "./client.test.js";
import "./outbox.test.js";
import "./rl.test.js";
import "./feedback-element.test.js";
import "./docs.test.js";
import "./bundle.test.js";
import "./programs.test.js";
