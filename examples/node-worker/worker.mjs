// A worker in plain Node.js (18 or newer, no packages), over the HTTP API:
//   HOLDFAST_URL=http://127.0.0.1:8080 HOLDFAST_TOKEN=hf_… HOLDFAST_QUEUE=default node worker.mjs
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
const { HOLDFAST_URL = "http://127.0.0.1:8080", HOLDFAST_TOKEN = "", HOLDFAST_QUEUE = "default" } = process.env;
const lease = 1000 * (process.env.HOLDFAST_LEASE ?? 30), grace = 1000 * (process.env.HOLDFAST_GRACE ?? 10);
let stopping = false, running = new AbortController();
const handlers = { // one function a task type: throwing is a failed attempt, `signal` says that the run is to end
  "node.greet": async ({ name }) => `hello ${name}`,
  "node.fail": async () => { throw new RangeError('this "never" works'); },
  "node.nap": async ({ seconds }, signal) => sleep(seconds * 1000, "rested", { signal }),
};
// The answer to a call, null if the claim is lost; made again until there is one: every call may be repeated.
async function call(path, body, signal) {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${HOLDFAST_TOKEN}` };
  for (let pause = 100; ; pause = Math.min(2 * pause, 10_000), delete body.fresh) {
    const request = { method: "POST", headers, body: JSON.stringify(body), signal: AbortSignal.timeout(30_000) };
    const response = await fetch(`${HOLDFAST_URL}/v1/${path}`, request).catch(({ cause }) => console.error(path, cause?.code));
    const text = await response?.text().catch(() => null); // null: cut off
    if (response?.ok && text) return JSON.parse(text);
    if ((body.token && [404, 409].includes(response?.status)) || (stopping && path === "reserve")) return null;
    if (response?.status >= 400 && response.status < 500 && response.status !== 429) throw new Error(text);
    await sleep(Math.max(pause, 1000 * (response?.headers.get("Retry-After") ?? 0)) * (1 + Math.random() / 2), null, { signal });
  }
}
async function keep(task_id, token, run) {
  for (let sent = performance.now(); !run.signal.aborted; ) {
    const late = setTimeout(() => run.abort("lost"), sent + lease - performance.now()).unref(); // no answer in time
    sent = await sleep(lease / 3, null, { signal: run.signal }) ?? performance.now();
    const held = await call(`tasks/${task_id}/extend`, { token, lease: lease / 1000 }, run.signal);
    clearTimeout(late);
    if (held === null || held.cancel_requested) run.abort(held === null ? "lost" : "cancelled");
  }
}
async function work({ task_id, token, type, arguments: given }, run) {
  keep(task_id, token, run).catch(() => {});
  try {
    const result = await handlers[type](given ?? {}, run.signal);
    await call(`tasks/${task_id}/ack`, { token, result: result ?? null });
  } catch (error) {
    const told = { type: error?.name ?? "Error", message: String(error?.message ?? error).slice(0, 2000) };
    if (!run.signal.aborted) await call(`tasks/${task_id}/fail`, { token, error: told });
    if (run.signal.reason === "released") await call(`tasks/${task_id}/release`, { token });
    if (run.signal.reason === "cancelled") await call("settle", { changes: [{ event: "stop", task_id, token }] });
  }
  run.abort("over");
}
process.on("uncaughtException", ({ message }) => { console.error(message); process.exit(1); });
const stop = () => { stopping = true; setInterval(() => running.abort("released"), grace); }; // what is not done by then
for (const name of ["SIGINT", "SIGTERM"]) process.once(name, stop);
const worker_id = `${hostname()}:${process.pid}-node`, serves = { queues: [HOLDFAST_QUEUE], types: Object.keys(handlers) };
const announce = () => call(`workers/${worker_id}/announce`, { ...serves, ttl: 60 }, AbortSignal.timeout(15_000)).catch(() => {});
announce() && setInterval(announce, 20_000); // so that it is listed
while (!stopping) {
  const asked = { worker_id, ...serves, lease: lease / 1000, wait: 5, claim_id: randomUUID(), fresh: true };
  for (const task of (await call("reserve", asked))?.tasks ?? []) await work(task, (running = new AbortController()));
}
process.exit(0);
