// The ladder of a call: participants, rows and the messages that belong together on both legs.

import { micros } from './format';
import type { CallEvent, Message, Stream } from './types';

export interface Participant {
  role: string;
  address: string;
  border: boolean;
}

export interface MessageRow {
  kind: 'message';
  time: number;
  message: Message;
  from: number;
  to: number;
  /** Index in `Message.index` of the same message on the other leg. */
  pair: number | null;
  /** Whether the same message was there before: a retransmission. */
  repeated: boolean;
}

export interface EventRow {
  kind: 'event';
  time: number;
  event: CallEvent;
}

export interface StreamRow {
  kind: 'stream';
  time: number;
  stream: Stream;
  from: number;
  to: number;
  /** Whether the stream begins or ends here. */
  begins: boolean;
}

export type Row = MessageRow | EventRow | StreamRow;

export interface Ladder {
  participants: Participant[];
  rows: Row[];
}

/** Columns at most; further peers share the last one. */
const MOST = 12;
/** A message that is sent later than this is no copy of the one received, microseconds. */
const PAIR_TIME = 10e6;

interface Column extends Participant {
  key: string;
  side: number;
}

/** Method of the transaction: that of CSeq, because a response has none. */
export function transactionMethod(message: Message): string {
  const inCseq = typeof message.cseq === 'string' ? /[A-Za-z]+$/.exec(message.cseq)?.[0] : undefined;
  return inCseq ?? message.method ?? '';
}

function peers(message: Message): { border: 'from' | 'to' | null; keys: [string, string] } {
  const leg = message.leg ?? 'x';
  if (message.direction === 'in') return { border: 'to', keys: [`${leg} ${message.from}`, ''] };
  if (message.direction === 'out') return { border: 'from', keys: ['', `${leg} ${message.to}`] };
  return { border: null, keys: [`${leg} ${message.from}`, `${leg} ${message.to}`] };
}

function columns(messages: Message[]): Column[] {
  const found = new Map<string, Column>();
  let border = '';
  let hasBorder = false;
  const add = (key: string, address: string, leg: number | null) => {
    if (found.has(key)) return;
    const role = leg === 0 ? 'caller' : leg === null ? 'peer' : leg === 1 ? 'callee' : `leg ${leg + 1}`;
    found.set(key, { key, address, role, border: false, side: leg === null ? 1e6 : leg });
  };
  for (const message of messages) {
    const ends = peers(message);
    if (ends.keys[0]) add(ends.keys[0], message.from, message.leg);
    if (ends.keys[1]) add(ends.keys[1], message.to, message.leg);
    if (ends.border) hasBorder = true;
    if (ends.border && !border) border = ends.border === 'to' ? message.to : message.from;
  }
  const all = [...found.values()];
  // Stable: peers of one leg stay in the order of their first message.
  all.sort((a, b) => a.side - b.side);
  if (hasBorder) {
    const at = all.findIndex((column) => column.side > 0);
    const caller = at < 0 ? all.length : Math.max(at, 1);
    all.splice(Math.min(caller, all.length), 0, { key: '', address: border, role: 'border', border: true, side: -1 });
  }
  return all;
}

export function ladder(messages: Message[], events: CallEvent[], streams: Stream[]): Ladder {
  const all = columns(messages);
  const shown = all.slice(0, MOST);
  if (all.length > MOST) {
    shown[MOST - 1] = { key: '*', role: 'others', address: `${all.length - MOST + 1} peers`, border: false, side: 0 };
  }
  const places = new Map(all.map((column, at) => [column.key, Math.min(at, MOST - 1)]));
  const place = (key: string) => places.get(key) ?? 0;
  const rows: Row[] = [];
  const received = new Map<string, MessageRow[]>();
  const before = new Set<string>();
  for (const message of messages) {
    const { keys } = peers(message);
    const method = transactionMethod(message);
    const identity = [message.leg, message.direction, message.from, message.to, message.cseq, message.method, message.status, message.summary].join('|');
    const row: MessageRow = {
      kind: 'message',
      time: micros(message.at),
      message,
      from: place(keys[0]),
      to: place(keys[1]),
      pair: null,
      repeated: before.has(identity),
    };
    before.add(identity);
    rows.push(row);
    const same = `${method} ${message.status ?? ''}`;
    if (message.direction === 'in') {
      const list = received.get(same) ?? [];
      list.push(row);
      received.set(same, list);
    } else if (message.direction === 'out') {
      // The latest one first; those that are too old are forgotten, so that the search stays short.
      const list = (received.get(same) ?? []).filter((other) => row.time - other.time <= PAIR_TIME).slice(-16);
      const at = list.findLastIndex((other) => other.message.leg !== message.leg);
      const other = at < 0 ? undefined : list[at];
      if (other) {
        row.pair = other.message.index;
        other.pair ??= message.index;
        // An INVITE is sent to several targets; a response is passed on once.
        if (message.status !== null) list.splice(at, 1);
      }
      received.set(same, list);
    }
  }
  for (const event of events) rows.push({ kind: 'event', time: micros(event.at), event });
  const border = shown.findIndex((column) => column.border);
  for (const stream of streams) {
    const peer = shown.findIndex((column) => !column.border && column.side === (stream.side === 'callee' ? 1 : 0));
    if (border < 0 || peer < 0) continue;
    for (const [at, begins] of [[stream.started, true], [stream.ended, false]] as const) {
      if (at) rows.push({ kind: 'stream', time: micros(at), stream, from: peer, to: border, begins });
    }
  }
  rows.sort((a, b) => a.time - b.time);
  return { participants: shown.map(({ role, address, border }) => ({ role, address, border })), rows };
}

/** The words of an arrow. */
export function label(message: Message): string {
  if (message.status !== null && message.status !== undefined) return message.summary || String(message.status);
  return message.method ?? message.summary;
}

/** Fields of an event or of a decision, in one line. */
export function fields(values: Record<string, unknown> | null | undefined): [string, string][] {
  return Object.entries(values ?? {}).map(([name, value]) => [name, value !== null && typeof value === 'object' ? JSON.stringify(value) : String(value)]);
}
