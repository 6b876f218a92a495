// Objects of the console's API (docs/console.md). Figures that are not known are null or absent.

export type Role = 'viewer' | 'operator' | 'admin';

export interface Session {
  /** Null before the login. */
  user: string | null;
  role: Role | null;
  /** Null before the login, and with a token. */
  csrf: string | null;
  redact: boolean;
  version: string;
  login: boolean;
  oidc: boolean;
  /** Whether calls are stored and can be searched. */
  store?: boolean;
}

export interface SideQuality {
  loss_percent: number | null;
  jitter_ms: number | null;
  jitter_whole_ms: boolean;
  mos: number | null;
}

export interface Call {
  id: string;
  /** Border that recorded it; null in a store of one. */
  node?: string | null;
  kind: string;
  state: string;
  call_id: string | null;
  call_ids: string[];
  call: number | null;
  method: string | null;
  from: string;
  to: string;
  started: string;
  answered: string | null;
  ended: string | null;
  duration_s: number | null;
  status: number | null;
  ended_by: string | null;
  reason: string | null;
  interface: string | null;
  route: string | null;
  trunk: string | null;
  addresses: string[];
  transports: string[];
  codec: string | null;
  protection: string | null;
  path: string | null;
  mos: number | null;
  caller: SideQuality;
  callee: SideQuality;
  messages: number;
}

export interface CallPage {
  calls: Call[];
  next: string | null;
  incomplete: boolean;
  /** Parts of the store that cannot be read. */
  unread: string[];
}

export interface Message {
  index: number;
  /** Border that recorded it, in a store of several: of a message between two of them the one that sent it. */
  node?: string | null;
  at: string;
  /** 0: leg of the caller; 1: behind the first border; 2: behind the second one. */
  leg: number | null;
  /** `in`: received by the border; `out`: sent; another word: seen by a capture agent. */
  direction: string;
  from: string;
  to: string;
  transport: string;
  summary: string;
  method: string | null;
  status: number | null;
  cseq: string | number | null;
  has_sdp: boolean;
  size: number;
}

export interface Interval {
  at: string;
  loss_percent?: number | null;
  jitter_ms?: number | null;
  jitter_whole_ms?: boolean;
  mos?: number | null;
}

export interface Stream {
  /** Border that received it, in a store of several. */
  node?: string | null;
  /** The side that sends it: caller or callee. */
  side: string;
  started?: string | null;
  ended?: string | null;
  codec?: string | null;
  protection?: string | null;
  path?: string | null;
  packets_received?: number | null;
  lost?: number | null;
  /** Packets that the border sent to this side, and those that it did not receive by its reports. */
  packets_sent?: number | null;
  remote_lost?: number | null;
  delay_ms?: number | null;
  loss_percent?: number | null;
  jitter_ms?: number | null;
  jitter_whole_ms?: boolean;
  mos?: number | null;
  intervals?: Interval[] | null;
}

export interface Decision {
  node?: string | null;
  at: string;
  what: string;
  detail: string | null;
  values: Record<string, unknown> | null;
}

export interface CallEvent {
  node?: string | null;
  at: string;
  name: string;
  fields: Record<string, unknown> | null;
}

export interface CallDetail {
  call: Call;
  /** Borders that recorded it, in the order in which they got the call; empty in a store of one. */
  nodes?: string[];
  messages: Message[];
  streams: Stream[];
  /** Whether the call has more messages than these. */
  truncated?: boolean;
  decision: Decision[];
  events: CallEvent[];
  /** The records of the other borders. */
  related?: Call[];
}

export interface Edit {
  /** From 1; null: the line is in the message on the other leg only. */
  line: number | null;
  before: string | null;
  after: string | null;
  rule: string | null;
}

export interface FullMessage {
  at: string;
  raw: string;
  edits: Edit[];
  /** Index of the same message on the other leg. */
  counterpart?: number | null;
  /** Whether body, credentials or numbers are not shown to this role. */
  redacted?: boolean;
}

export interface LiveCall {
  id: string | number;
  call_id: string | null;
  from: string;
  to: string;
  started: string;
  answered?: string | null;
  state: string;
  interface?: string | null;
  trunk: string | null;
  /** Media received from caller and callee in the last interval of quality. */
  media?: LiveMedia[];
}

export interface LiveMedia {
  codec: string | null;
  loss_percent: number | null;
  jitter_ms: number | null;
  jitter_whole_ms: boolean;
  mos: number | null;
}

export interface Registration {
  aor: string;
  contact: string;
  source: string;
  transport: string | null;
  expires_s: number;
  interface: string | null;
}

export interface Trunk {
  name: string;
  state: string;
  enabled?: boolean;
  reason: string | null;
  calls: number;
  calls_max?: number | null;
  address: string | null;
  targets?: { address: string; up: boolean }[];
}

export interface Tunnel {
  name: string;
  up: boolean;
  since: string;
  peer: string | null;
  identity: string;
  algorithms: string;
  sealed: number;
  opened: number;
}

export interface Now {
  at?: number;
  calls_active: number;
  calls_per_s: number;
  registrations: number;
  registrations_per_s: number;
  rtp_packets_per_s: number;
  mos: number | null;
  /** Percent of one processor. */
  cpu: number;
  memory_mib: number;
  drops_per_s: number;
  answered_ratio: number | null;
  /** Items that the store lost since the start; null: there is no store. */
  store_lost?: number | null;
  store_failing?: boolean;
}

export interface Series {
  at: number[];
  calls_active: (number | null)[];
  calls_per_s: (number | null)[];
  registrations: (number | null)[];
  rtp_packets_per_s: (number | null)[];
  mos: (number | null)[];
  cpu: (number | null)[];
  memory_mib: (number | null)[];
  drops_per_s: (number | null)[];
}

export interface Drop {
  reason: string;
  total: number;
  per_s: number;
  help: string;
}

export interface Alarm {
  id: number | string;
  name: string;
  since: string;
  cleared: string | null;
  severity: string;
  object?: string;
  text: string;
  help?: string;
  acknowledged_by: string | null;
  acknowledged_at: string | null;
}

export interface Report {
  name: string;
  title: string;
  started: string | null;
  verdict: string | null;
}

export interface AuditEntry {
  at: string;
  user: string | null;
  role: string | null;
  source: string;
  action: string;
  value: string;
  outcome: string;
}

export interface MediaNode {
  name: string;
  control: string;
  up: boolean;
  drain: boolean;
  calls: number;
  sessions: number | null;
}

export interface Ban {
  source: string;
  reason: string;
  remaining_s: number;
}
