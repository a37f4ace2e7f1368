// Talks to the gateway of this page, and to nothing else.

const seen = new Map();
let token = null;

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function get(path) {
  const known = seen.get(path);
  const answer = await fetch(path, { headers: known ? { "If-None-Match": known.etag } : {}, cache: "no-store" });
  if (answer.status === 304 && known) return { ...known, changed: false };
  const data = await read(answer);
  const fresh = { data, etag: answer.headers.get("ETag"), now: Number(answer.headers.get("X-Holdfast-Now")) };
  if (fresh.etag) {
    seen.set(path, fresh);
    if (seen.size > 20) seen.delete(seen.keys().next().value);
  }
  return { ...fresh, changed: true };
}

export async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  if (token) headers["X-Holdfast-CSRF"] = token;
  return read(await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function read(answer) {
  const data = await answer.json().catch(() => null);
  if (!answer.ok) throw new Failure(answer.status, data?.message ?? `the gateway answered ${answer.status}`);
  return data;
}

// Who is logged in, or null.
export async function session() {
  try {
    const { data } = await get("/ui/session");
    token = data.csrf;
    return data.by;
  } catch (error) {
    if (error instanceof Failure) return null;
    throw error;
  }
}

export async function login(secret, by) {
  const data = await post("/ui/login", { secret, by });
  token = data.csrf;
  return data.by;
}

export async function logout() {
  await post("/ui/logout", {});
  token = null;
  seen.clear();
}
