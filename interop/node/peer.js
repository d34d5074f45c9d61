// SPDX-License-Identifier: MIT
//
// peer.js: node-redlock on ioredis, played by interop/run through one line at a time (see interop/README.md).
//
//     peer.js HOST:PORT...        one server, or the masters of a Redlock

import { randomBytes } from "node:crypto";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import Redlock, { ExecutionError, Lock } from "redlock";

const POLL_MS = 20;

const clients = process.argv.slice(2).map((address) => {
  const [host, port] = address.split(":");
  // A master that is down is to be voted down at once, not to be queued for.
  const client = new Redis({ host, port: Number(port), maxRetriesPerRequest: 0 });
  client.on("error", (error) => console.error(`${address}: ${error.message}`));
  return client;
});
const redlock = new Redlock(clients, { retryCount: 0 });
const held = new Map();

/* redlock tells "somebody has it" and "no answer" by one class of error; the votes tell them apart. */
async function refused(error, answer) {
  if (!(error instanceof ExecutionError)) {
    throw error;
  }
  const votes = await error.attempts.at(-1);
  const troubles = [...votes.votesAgainst.values()].filter((vote) => vote.name !== "ResourceLockedError");
  if (troubles.length >= votes.quorumSize) {
    throw troubles[0];
  }
  return answer;
}

async function tryOnce(name, ttlMs) {
  try {
    const lock = await redlock.acquire([name], Number(ttlMs));
    held.set(name, () => redlock.release(lock));
    return "held";
  } catch (error) {
    return refused(error, "busy");
  }
}

/* One attempt after the other and not by redlock's own retryCount: between its retries it keeps what it got from a
 * minority of the masters, takes that for somebody else's the next time, and so can lock itself out. */
async function take(name, ttlMs, waitMs) {
  const end = Date.now() + Number(waitMs);
  let answer = await tryOnce(name, ttlMs);
  while (answer === "busy" && Date.now() < end) {
    await sleep(POLL_MS / 2 + Math.random() * POLL_MS);
    answer = await tryOnce(name, ttlMs);
  }
  return answer;
}

/* With redlock's own renewal, using(): it holds the lock for as long as a promise is open. Only one attempt is made. */
function keep(name, ttlMs) {
  return new Promise((resolve, reject) => {
    let end;
    const until = new Promise((resolveEnd) => (end = resolveEnd));
    const settings = { automaticExtensionThreshold: Math.ceil((2 * Number(ttlMs)) / 3) };
    const use = redlock.using([name], Number(ttlMs), settings, () => {
      held.set(name, () => {
        end();
        return use;
      });
      resolve("held");
      return until;
    });
    use.catch((error) => refused(error, "busy").then(resolve, reject));
  });
}

async function release(name) {
  const giveBack = held.get(name);
  held.delete(name);
  try {
    await giveBack();
    return "released";
  } catch (error) {
    return refused(error, "refused");
  }
}

/* With a value of its own, as if it had held the lock. */
function steal(name) {
  const lock = new Lock(redlock, [name], randomBytes(16).toString("hex"), [], Date.now() + 1000);
  held.set(name, () => redlock.release(lock));
  return release(name);
}

const commands = { try: tryOnce, acquire: take, keep, release, steal };

await Promise.all(clients.map((client) => client.ping()));
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...words] = line.split(" ");
  if (command === "quit") {
    break;
  }
  try {
    console.log(await commands[command](...words));
  } catch (error) {
    console.error(error);
    console.log(`error ${String(error).replaceAll("\n", " ")}`);
  }
}
process.exit(0);
