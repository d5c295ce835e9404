// A worker in plain Node.js (18 or newer, no packages), over the HTTP API:
//   HOLDFAST_URL=http://127.0.0.1:8080 HOLDFAST_TOKEN=hf_… HOLDFAST_QUEUE=default node worker.mjs
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

const { HOLDFAST_URL = "http://127.0.0.1:8080", HOLDFAST_TOKEN = "", HOLDFAST_QUEUE = "default" } = process.env;
const lease = Number(process.env.HOLDFAST_LEASE ?? 30);
let stopping = false; // what was claimed is finished first
// One function a task type. Throwing is a failed attempt; `signal` says that the run is to end.
const handlers = {
  "node.greet": async ({ name }) => `hello ${name}`,
  "node.fail": async () => { throw new RangeError('this "never" works'); },
  "node.nap": async ({ seconds }, signal) => sleep(seconds * 1000, "rested", { signal }),
};

// The answer to a call, null if the claim is lost; made again until there is one: every call may be repeated.
async function call(path, body, signal) {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${HOLDFAST_TOKEN}` };
  const request = { method: "POST", headers, body: JSON.stringify(body), signal };
  for (let pause = 100; ; pause = Math.min(2 * pause, 10_000)) {
    const response = await fetch(`${HOLDFAST_URL}/v1/${path}`, request).catch(() => null);
    const text = await response?.text().catch(() => null); // null: cut off
    if (response?.ok && text) return JSON.parse(text);
    if ([404, 409].includes(response?.status) || (stopping && path === "reserve")) return null;
    if (response?.status >= 400 && response.status < 500 && response.status !== 429) throw new Error(text);
    await sleep(pause * (0.5 + Math.random() / 2), undefined, { signal });
  }
}
async function keep(task_id, token, ending) {
  while (!ending.signal.aborted) {
    await sleep((lease * 1000) / 3, undefined, { signal: ending.signal });
    const held = await call(`tasks/${task_id}/extend`, { token, lease }, ending.signal);
    if (held === null || held.cancel_requested) ending.abort(held === null ? "lost" : "cancelled");
  }
}
async function run({ task_id, token, type, arguments: given }) {
  const ending = new AbortController();
  keep(task_id, token, ending).catch(() => {});
  try {
    const result = await handlers[type](given ?? {}, ending.signal);
    await call(`tasks/${task_id}/ack`, { token, result: result ?? null });
  } catch (error) {
    const told = { type: error?.name ?? "Error", message: String(error?.message ?? error).slice(0, 2000) };
    if (ending.signal.reason === "cancelled") await call("settle", { changes: [{ event: "stop", task_id, token }] });
    else if (!ending.signal.aborted) await call(`tasks/${task_id}/fail`, { token, error: told });
  }
  ending.abort("over");
}
for (const name of ["SIGINT", "SIGTERM"]) process.once(name, () => { stopping = true; });
const worker_id = `${hostname()}:${process.pid}-node`, queues = [HOLDFAST_QUEUE], types = Object.keys(handlers);
const announce = () => // as long as it lives, so that it is listed
  call(`workers/${worker_id}/announce`, { queues, types, ttl: 60 }, AbortSignal.timeout(19_000)).catch(() => {});
announce() && setInterval(announce, 20_000).unref();
while (!stopping) {
  const claim_id = `${worker_id}-${process.hrtime.bigint()}`; // a repeated reserve gets what the lost answer had
  const reserved = await call("reserve", { worker_id, queues, types, lease, wait: 5, claim_id })
    .catch(({ message }) => { console.error(message); process.exit(1); });
  for (const task of reserved?.tasks ?? []) await run(task);
}
