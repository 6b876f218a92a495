// The ladder of a call: participants, rows and the messages that belong together on both legs.

import { micros } from './format';
import type { CallEvent, Message, Stream } from './types';

export interface Participant {
  role: string;
  /** Addresses of its messages in the order of their first ones: a border has one on each interface. */
  addresses: string[];
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
  /** Place from left to right: a leg; a border stands behind the caller, or before the other peers of its first leg. */
  side: number;
}

/** The two ends of a message, by the keys of their columns. */
type Ends = [string, string];

/** Method of the transaction: that of CSeq, because a response has none. */
export function transactionMethod(message: Message): string {
  const inCseq = typeof message.cseq === 'string' ? /[A-Za-z]+$/.exec(message.cseq)?.[0] : undefined;
  return inCseq ?? message.method ?? '';
}

const nodeOf = (one: { node?: string | null }) => one.node ?? '';
const borderKey = (node: string) => `border ${node}`;

/** The border of each address: a message to the address of another border ends there. */
function borders(messages: Message[]): Map<string, string> {
  const found = new Map<string, string>();
  for (const message of messages) {
    if (message.direction === 'in') found.set(message.to, nodeOf(message));
    if (message.direction === 'out') found.set(message.from, nodeOf(message));
  }
  return found;
}

function ends(message: Message, addresses: Map<string, string>): Ends {
  const own = borderKey(nodeOf(message));
  // A border that sends to itself has two columns: it is its own peer.
  const peer = (address: string) => {
    const node = addresses.get(address);
    return node !== undefined && node !== nodeOf(message) ? borderKey(node) : `${message.leg ?? 'x'} ${address}`;
  };
  if (message.direction === 'in') return [peer(message.from), own];
  if (message.direction === 'out') return [own, peer(message.to)];
  return [peer(message.from), peer(message.to)];
}

function borderSide(leg: number | null): number {
  return leg === null ? 1e6 : leg === 0 ? 0.5 : leg - 0.25;
}

function columns(messages: Message[], addresses: Map<string, string>): Column[] {
  const found = new Map<string, Column>();
  const last = Math.max(0, ...messages.slice(0, 1000).map((message) => message.leg ?? 0));
  const seen = new Map<string, Set<string>>();
  const add = (key: string, address: string, message: Message) => {
    const { leg } = message;
    const isBorder = key.startsWith('border ');
    const known = found.get(key);
    if (!known) {
      const side = leg === null ? 1e6 : leg;
      const role = isBorder ? key.slice(7) || 'border' : leg === 0 ? 'caller' : leg === null ? 'peer' : leg === 1 || leg === last ? 'callee' : `leg ${leg + 1}`;
      seen.set(key, new Set());
      found.set(key, { key, addresses: [], role, border: isBorder, side: isBorder ? borderSide(leg) : side });
    } else if (isBorder && leg !== null) {
      known.side = Math.min(known.side, borderSide(leg));
    }
    seen.get(key)?.add(address);
  };
  for (const message of messages) {
    const [from, to] = ends(message, addresses);
    add(from, message.from, message);
    add(to, message.to, message);
  }
  const all = [...found.values()];
  for (const column of all) column.addresses = [...(seen.get(column.key) ?? [])];
  // Stable: peers of one leg stay in the order of their first message.
  all.sort((a, b) => a.side - b.side);
  // A border stands behind the first peer, also without a caller.
  if (all[0]?.border && all[1] && !all[1].border) all.unshift(...all.splice(1, 1));
  return all;
}

/**
 * Sorts by time. The border stamps all outputs of one input with the same time: events of that microsecond stand between
 * the received message and the sent ones that they explain, as in the text ladder (`console/src/ladder.rs`).
 */
function inOrder(rows: Row[]): void {
  const order = new Map<Row, number>();
  let [time, sent] = [-1, false];
  for (const row of rows) {
    if (row.kind !== 'message') continue;
    sent = row.message.direction === 'out' || (sent && row.time === time);
    time = row.time;
    order.set(row, sent ? 2 : 0);
  }
  const place = (row: Row) => order.get(row) ?? 1;
  rows.sort((a, b) => a.time - b.time || place(a) - place(b));
}

export function ladder(messages: Message[], events: CallEvent[], streams: Stream[]): Ladder {
  const addresses = borders(messages);
  const all = columns(messages, addresses);
  const shown = all.slice(0, MOST);
  if (all.length > MOST) {
    shown[MOST - 1] = { key: '*', role: 'others', addresses: [`${all.length - MOST + 1} peers`], border: false, side: 0 };
  }
  const places = new Map(all.map((column, at) => [column.key, Math.min(at, MOST - 1)]));
  const place = (key: string) => places.get(key) ?? 0;
  const rows: Row[] = [];
  const received = new Map<string, MessageRow[]>();
  const before = new Set<string>();
  /** The column at the other end of each leg of a border. */
  const peerOf = new Map<string, string>();
  const legsOf = new Map<string, number[]>();
  for (const message of messages) {
    const keys = ends(message, addresses);
    for (const [own, peer] of [keys, [keys[1], keys[0]]] as const) {
      if (!own.startsWith('border ') || message.leg === null) continue;
      const legs = legsOf.get(own) ?? [];
      if (!legs.includes(message.leg)) legsOf.set(own, [...legs, message.leg]);
      if (!peerOf.has(`${message.leg} ${own}`)) peerOf.set(`${message.leg} ${own}`, peer);
    }
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
    const what = `${method} ${message.status ?? ''}`;
    const same = `${borderKey(nodeOf(message))} ${what}`;
    const arrives = (at: string) => received.set(at, [...(received.get(at) ?? []).slice(-64), row]);
    if (message.direction === 'in') {
      arrives(same);
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
      // Its copy at another border is not in the list.
      if (keys[1].startsWith('border ')) arrives(`${keys[1]} ${what}`);
    }
  }
  for (const event of events) rows.push({ kind: 'event', time: micros(event.at), event });
  for (const stream of streams) {
    const own = borderKey(nodeOf(stream));
    const legs = legsOf.get(own) ?? [];
    const leg = stream.side === 'callee' ? Math.max(...legs) : Math.min(...legs);
    const other = peerOf.get(`${leg} ${own}`);
    const [border, peer] = [places.get(own) ?? -1, other === undefined ? -1 : place(other)];
    if (border < 0 || peer < 0 || (stream.side === 'callee' && legs.length < 2)) continue;
    for (const [at, begins] of [[stream.started, true], [stream.ended, false]] as const) {
      if (at) rows.push({ kind: 'stream', time: micros(at), stream, from: peer, to: border, begins });
    }
  }
  inOrder(rows);
  return { participants: shown.map(({ role, addresses, border }) => ({ role, addresses, border })), rows };
}

/** Sender and receiver of a message or of a stream in words: a message has its own two addresses. */
export function direction(row: Row, participants: Participant[]): string {
  if (row.kind === 'event') return '';
  const name = (column: number, address?: string) => {
    const one = participants[column];
    return one ? `${one.role} ${address ?? one.addresses.join(', ')}` : (address ?? 'unknown');
  };
  return row.kind === 'message'
    ? `${name(row.from, row.message.from)} to ${name(row.to, row.message.to)}`
    : `${name(row.from)} to ${name(row.to)}`;
}

/**
 * First and last time of a call in seconds: of its messages and events, of the intervals of its streams, and the present time
 * of a call in progress.
 */
export function timeBounds(rows: Row[], streams: Stream[], now: number | null): { from: number; until: number } {
  let least = Infinity;
  let most = -Infinity;
  const add = (time: number) => {
    if (!Number.isFinite(time)) return;
    least = Math.min(least, time);
    most = Math.max(most, time);
  };
  for (const row of rows) add(row.time / 1e6);
  for (const stream of streams) for (const one of stream.intervals ?? []) add(micros(one.at) / 1e6);
  // The clock of the browser may be behind.
  if (now !== null && Number.isFinite(least)) add(Math.max(now, least));
  if (!Number.isFinite(least)) [least, most] = [0, 1];
  const margin = Math.max((most - least) * 0.01, 0.005);
  return { from: least - margin, until: most + margin };
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
