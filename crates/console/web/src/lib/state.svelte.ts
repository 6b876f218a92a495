// State of the whole page: session, theme, events of the server, notices.

import { change, get, onExpired, session as readSession, setCsrf, url, type ApiError } from './api';
import { asApiError, Resource } from './resource.svelte';
import { countAlarms, type AlarmCounts } from './alarms';
import type { Alarm, Now, Role, Session } from './types';

const RANK: Record<Role, number> = { viewer: 0, operator: 1, admin: 2 };

class SessionState {
  current = $state.raw<Session | null>(null);
  /** Whether the first answer of the server is there. */
  known = $state(false);
  error = $state.raw<ApiError | null>(null);
  oidc = $state(false);
  version = $state('');
  ended = $state(false);

  /** Whether the role of the session has at least the rights of `role`. */
  may(role: Role): boolean {
    return this.current !== null && RANK[this.current.role ?? 'viewer'] >= RANK[role];
  }

  async load(): Promise<void> {
    try {
      this.#accept(await readSession<Session>());
      this.error = null;
    } catch (error) {
      const refused = asApiError(error);
      this.current = null;
      this.error = refused.status === 401 ? null : refused;
    }
    this.known = true;
  }

  async login(user: string, password: string): Promise<void> {
    this.#accept(await change<Session>('POST', '/session', { user, password }, true));
    this.ended = false;
  }

  async logout(): Promise<void> {
    await change('DELETE', '/session', undefined, true);
    this.drop(false);
  }

  drop(ended: boolean): void {
    if (this.current === null) return;
    this.current = null;
    this.ended = ended;
    live.close();
  }

  #accept(session: Session): void {
    this.oidc = session.oidc;
    this.version = session.version;
    // Without a user where login is needed there is no session yet.
    if (!session.role || (session.login && !session.user)) {
      this.current = null;
      return;
    }
    if (!(session.role in RANK)) session.role = 'viewer';
    setCsrf(session.csrf);
    this.current = session;
    live.open();
    void alarms.refresh();
  }
}

/** Events of the server (server-sent events). */
class LiveState {
  connected = $state(false);
  now = $state.raw<Now | null>(null);
  /** Counts changes of calls, so that pages load again. */
  calls = $state(0);
  #source: EventSource | null = null;

  open(): void {
    if (this.#source) return;
    // The server ends a stream after some minutes; the browser then connects again.
    const source = new EventSource(url('/live/stream'));
    this.#source = source;
    source.onopen = () => (this.connected = true);
    source.onerror = () => {
      this.connected = false;
      // A refused stream is not tried again by the browser.
      if (source.readyState === EventSource.CLOSED && this.#source === source) {
        this.#source = null;
        setTimeout(() => {
          if (!session.current) return;
          this.open();
          // It may have been refused because the session has ended, which this request finds.
          void alarms.refresh();
        }, 10_000);
      }
    };
    source.addEventListener('overview', (event) => {
      try {
        this.now = JSON.parse((event as MessageEvent<string>).data) as Now;
      } catch {
        // An event that is no JSON changes nothing; the next one counts.
      }
    });
    // Thousands a second under load: their bodies are not read, the lists are loaded again.
    source.addEventListener('call', () => (this.calls += 1));
    source.addEventListener('alarm', () => void alarms.refresh());
  }

  close(): void {
    this.#source?.close();
    this.#source = null;
    this.connected = false;
  }
}

class AlarmState {
  list = new Resource<{ alarms: Alarm[] }>();

  /** Numbers of active alarms, and of those that no operator acknowledged. */
  get counts(): AlarmCounts {
    return countAlarms(this.list.data?.alarms ?? []);
  }

  refresh(): Promise<boolean> {
    return this.list.load((signal) => get<{ alarms: Alarm[] }>('/alarms', {}, signal));
  }
}

export type Theme = 'system' | 'light' | 'dark';

function stored(name: string): string | null {
  try {
    return localStorage.getItem(name);
  } catch {
    // Storage may be forbidden; the setting then lasts as long as the page.
    return null;
  }
}

function store(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch {
    // As above.
  }
}

class Settings {
  #theme = $state<Theme>('system');
  #keys = $state(true);
  /** Counts changes of the colours, also those of the system. */
  colours = $state(0);

  constructor() {
    const theme = stored('hornwork-theme');
    if (theme === 'light' || theme === 'dark') this.#theme = theme;
    this.#keys = stored('hornwork-keys') !== 'off';
    this.#apply();
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => (this.colours += 1));
  }

  get theme(): Theme {
    return this.#theme;
  }

  set theme(theme: Theme) {
    this.#theme = theme;
    store('hornwork-theme', theme);
    this.#apply();
    this.colours += 1;
  }

  /** Whether single keys are shortcuts (WCAG 2.1.4: they can be turned off). */
  get keys(): boolean {
    return this.#keys;
  }

  set keys(on: boolean) {
    this.#keys = on;
    store('hornwork-keys', on ? 'on' : 'off');
  }

  #apply(): void {
    const root = document.documentElement;
    if (this.#theme === 'system') root.removeAttribute('data-theme');
    else root.setAttribute('data-theme', this.#theme);
  }
}

export interface Question {
  title: string;
  text: string;
  verb: string;
  answer: (yes: boolean) => void;
}

class Notices {
  question = $state.raw<Question | null>(null);
  error = $state.raw<{ what: string; error: ApiError } | null>(null);
  done = $state('');

  /** Asks before an action that cannot be undone. */
  confirm(title: string, text: string, verb: string): Promise<boolean> {
    return new Promise((resolve) => {
      this.question = { title, text, verb, answer: resolve };
    });
  }

  /** Runs an action and shows its outcome. */
  async run(what: string, action: () => Promise<unknown>): Promise<boolean> {
    this.error = null;
    this.done = '';
    try {
      await action();
      this.done = `${what}: done`;
      return true;
    } catch (error) {
      this.error = { what, error: asApiError(error) };
      return false;
    }
  }

  clear(): void {
    this.error = null;
    this.done = '';
  }
}

export const alarms = new AlarmState();
export const live = new LiveState();
export const session = new SessionState();
export const settings = new Settings();
export const notices = new Notices();

onExpired(() => session.drop(true));
