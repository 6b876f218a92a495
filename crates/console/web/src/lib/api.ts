// Requests to the API of the console.

/** A refusal, or a connection that failed (status 0). */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const BASE = '/api/v1';
let csrf = '';
let expired: () => void = () => {};

/** When the user last touched this page. */
let lastInput = Date.now();

/** Notes an input of the user: pages refresh themselves, and only inputs keep a session. */
export function noteInput(): void {
  lastInput = Date.now();
}

/** Whole seconds since the last input. */
function idleSeconds(): number {
  return Math.max(0, Math.floor((Date.now() - lastInput) / 1000));
}

export function setCsrf(token: string | null): void {
  csrf = token ?? '';
}

/** Called when a request is refused for want of a session. */
export function onExpired(handler: () => void): void {
  expired = handler;
}

export type Query = Record<string, string | number | null | undefined>;

export function url(path: string, query: Query = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== '') search.set(name, String(value));
  }
  const text = search.toString();
  return `${BASE}${path}${text ? `?${text}` : ''}`;
}

async function refusal(response: Response): Promise<ApiError> {
  let text = '';
  let code = '';
  try {
    const body: unknown = await response.json();
    if (body && typeof body === 'object') {
      if ('error' in body && typeof body.error === 'string') text = body.error;
      if ('code' in body && typeof body.code === 'string') code = body.code;
    }
  } catch {
    // A refusal without a JSON body has its status only.
  }
  const wait = response.headers.get('retry-after');
  if (response.status === 429 && wait) text = `${text || 'too many requests'}; try again in ${wait} s`;
  return new ApiError(response.status, code, text || response.statusText || 'the server gave no reason');
}

async function send(path: string, init: RequestInit & { headers?: Record<string, string> }, quiet: boolean): Promise<Response> {
  let response: Response;
  const headers = { ...init.headers, 'X-Idle-Seconds': String(idleSeconds()) };
  try {
    response = await fetch(path, { credentials: 'same-origin', cache: 'no-store', redirect: 'error', ...init, headers });
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    throw new ApiError(0, 'unreachable', 'the server does not answer; is hornwork running, and is the network up?');
  }
  if (response.ok) return response;
  const error = await refusal(response);
  if (error.status === 401 && !quiet) expired();
  throw error;
}

async function parsed<T>(response: Response): Promise<T> {
  if (response.status === 204) return null as T;
  const text = await response.text();
  if (text === '') return null as T;
  try {
    return JSON.parse(text) as T;
  } catch {
    throw new ApiError(response.status, 'malformed', 'the response is not JSON; does a proxy answer for the server?');
  }
}

export async function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  return parsed<T>(await send(url(path, query), signal ? { signal } : {}, false));
}

/** A request that changes state. `quiet`: a 401 is an answer and not the end of the session. */
export async function change<T>(method: string, path: string, body?: unknown, quiet = false): Promise<T> {
  const headers: Record<string, string> = {};
  if (csrf) headers['X-CSRF-Token'] = csrf;
  const init: RequestInit & { headers: Record<string, string> } = { method, headers };
  if (body !== undefined) {
    headers['Content-Type'] = 'application/json';
    init.body = JSON.stringify(body);
  }
  return parsed<T>(await send(url(path), init, quiet));
}

/** The session, or the refusal, without the effect of [`onExpired`]. */
export async function session<T>(): Promise<T> {
  return parsed<T>(await send(url('/session'), {}, true));
}

/** Saves a response as a file. */
export async function download(path: string, name: string): Promise<void> {
  const response = await send(url(path), {}, false);
  const address = URL.createObjectURL(await response.blob());
  const link = document.createElement('a');
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
