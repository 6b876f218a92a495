// A server with the API of the console and invented data, for tests of the pages. It is no part of the program.
import { createServer } from 'node:http';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const dist = join(dirname(fileURLToPath(import.meta.url)), '../dist');

export const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
  "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types svelte-trusted-html";

/** Values that a hostile peer may send: markup, the other direction of writing, control characters, length. */
export const HOSTILE = {
  markup: '<script>window.hacked=1</script><img src=x onerror="window.hacked=1">',
  turned: 'abc\u202egnp.exe\u2066\u200b',
  controls: 'a\u0000b\u001b[2J\u0007c',
  arabic: 'مرحبا بالعالم',
  long: 'x'.repeat(4000),
  sql: "' OR 1=1; --",
};
const HOSTILE_LIST = Object.values(HOSTILE);

const START = Date.parse('2026-11-25T20:00:00Z') * 1000;
const rfc = (micros) => `${new Date(Math.floor(micros / 1000)).toISOString().slice(0, 19)}.${String(micros % 1_000_000).padStart(6, '0')}Z`;

function call(id, more = {}) {
  const started = START - id * 7_130_417;
  const failed = id % 5 === 3;
  return {
    id: String(id), kind: 'call', state: 'ended', call_id: `c${id}@192.0.2.10`, call_ids: [`c${id}@192.0.2.10`, `b2b-${id}@198.51.100.1`], call: id, method: 'INVITE',
    from: String(1000 + (id % 40)), to: String(600 + (id % 7)), started: rfc(started), answered: failed ? null : rfc(started + 1_500_000), ended: rfc(started + 62_300_000),
    duration_s: failed ? null : 60.8, status: failed ? 486 : 200, ended_by: failed ? 'callee' : 'caller', reason: failed ? 'Busy Here' : 'BYE', interface: 'access', route: 'to-pbx', trunk: 'pbx',
    addresses: ['192.0.2.10:5060', '198.51.100.20:5060'], transports: ['udp'], codec: failed ? null : 'PCMA', protection: null, path: failed ? null : 'anchored', mos: failed ? null : [4.3, 3.7, 2.1][id % 3],
    caller: { loss_percent: 0.02, jitter_ms: 1.2, mos: 4.3 }, callee: { loss_percent: 1.4, jitter_ms: 8.2, mos: [4.3, 3.7, 2.1][id % 3] }, messages: 12, ...more,
  };
}

const A = '192.0.2.10:5060', BA = '192.0.2.1:5060', BB = '198.51.100.1:5060', B = '198.51.100.20:5060';

/** Messages of one call: INVITE to BYE on both legs; with `more` in-dialog INFO requests between. */
function messages(started, more = 0) {
  const list = [];
  const add = (ms, leg, direction, summary, cseq, sdp = false) => {
    const status = /^\d{3}/.exec(summary)?.[0];
    const peer = leg === 0 ? A : B;
    const own = leg === 0 ? BA : BB;
    list.push({
      index: list.length, at: rfc(started + Math.round(ms * 1000)), leg, direction, from: direction === 'in' ? peer : own, to: direction === 'in' ? own : peer, transport: 'udp', summary,
      method: status ? null : summary.split(' ')[0], status: status ? Number(status) : null, cseq, has_sdp: sdp, size: 400 + summary.length,
    });
  };
  const both = (ms, first, summary, cseq, sdp) => {
    add(ms, first, 'in', summary, cseq, sdp);
    add(ms + 0.4, 1 - first, 'out', summary, cseq, sdp);
  };
  add(0, 0, 'in', 'INVITE sip:600@border.example SIP/2.0', '1 INVITE', true);
  add(0.2, 0, 'out', '100 Trying', '1 INVITE');
  add(0.6, 1, 'out', 'INVITE sip:600@198.51.100.20 SIP/2.0', '1 INVITE', true);
  add(500, 1, 'out', 'INVITE sip:600@198.51.100.20 SIP/2.0', '1 INVITE', true);
  both(620, 1, '180 Ringing', '1 INVITE');
  both(1500, 1, '200 OK', '1 INVITE', true);
  both(1530, 0, 'ACK sip:600@198.51.100.20 SIP/2.0', '1 ACK');
  for (let number = 0; list.length < more; number += 1) {
    both(1600 + number * 10, 0, 'INFO sip:600@198.51.100.20 SIP/2.0', `${number + 2} INFO`);
    both(1604 + number * 10, 1, '200 OK', `${number + 2} INFO`);
  }
  both(62_000, 0, 'BYE sip:600@198.51.100.20 SIP/2.0', '90000 BYE');
  both(62_030, 1, '200 OK', '90000 BYE');
  return list;
}

function streams(started) {
  const at = (s) => rfc(started + s * 1_000_000);
  const one = (side, mos, dip) => ({
    side, codec: 'PCMA', protection: side === 'callee' ? 'sdes' : null, path: 'sockets', started: at(1.5), ended: at(62), packets_received: 3020, lost: dip ? 42 : 0, packets_sent: 3018, remote_lost: 1, delay_ms: 12.4, loss_percent: dip ? 1.4 : 0, jitter_ms: dip ? 8.2 : 0.9, mos,
    intervals: Array.from({ length: 12 }, (_, number) => ({ at: at(2 + number * 5), loss_percent: dip && number === 6 ? 12.5 : 0, jitter_ms: dip ? 5 + number % 4 : 0.8, mos: dip && number === 6 ? 2.1 : mos })),
  });
  return [{ ...one('caller', 4.37, false), intervals: undefined }, one('callee', 3.8, true)];
}

/** Number of a call in progress: its messages end with the ACK, its streams have intervals until now. */
export const RUNNING = 500;

function running() {
  const started = Date.now() * 1000 - 93e6;
  const at = (s) => rfc(started + s * 1_000_000);
  const list = messages(started).filter((one) => !one.cseq.startsWith('90000'));
  const stream = (side, mos) => ({
    side, codec: 'PCMA', protection: null, path: 'sockets', started: at(1.5), ended: null, packets_received: 4498, lost: 2, packets_sent: null, remote_lost: null, delay_ms: null, loss_percent: 0.04, jitter_ms: 1.1, mos,
    intervals: Array.from({ length: 9 }, (_, number) => ({ at: at(11.5 + number * 10), loss_percent: 0, jitter_ms: 1.1, mos: mos - (number % 3) * 0.1 })),
  });
  const none = { loss_percent: null, jitter_ms: null, mos: null };
  const summary = { ...call(RUNNING), state: 'answered', started: at(0), answered: at(1.5), ended: null, duration_s: null, ended_by: null, reason: null, mos: null, caller: none, callee: none, messages: list.length };
  return { call: summary, messages: list, streams: [stream('caller', 4.4), stream('callee', 4.1)], decision: [], events: [] };
}

function detail(id, more, hostile) {
  if (Number(id) === RUNNING) return running();
  const summary = call(Number(id));
  const started = Date.parse(summary.started.slice(0, 19) + 'Z') * 1000 + Number(summary.started.slice(20, 26));
  const list = messages(started, more);
  const at = (ms) => rfc(started + ms * 1000);
  const body = {
    call: { ...summary, messages: list.length },
    messages: list,
    streams: streams(started),
    decision: [
      { at: at(0.1), what: 'admission', detail: 'admitted', values: { calls: 120, limit: 2000, source: '192.0.2.10', rate: '3/s', rate_limit: '50/s' } },
      { at: at(0.3), what: 'rule strip-prefix', detail: 'Request-URI rewritten', values: { condition: "to.user.startsWith('0049')", before: '0049600', after: '600' } },
      { at: at(0.4), what: 'route to-pbx', detail: 'trunk pbx, first of 2 targets', values: { number: '600', up: 2, cost: 1 } },
    ],
    events: [
      { at: at(0.35), name: 'call_routed', fields: { route: 'to-pbx', trunk: 'pbx' } },
      { at: at(1510), name: 'media_latched', fields: { side: 'caller', address: '192.0.2.10:4000' } },
    ],
  };
  if (hostile) {
    body.call = { ...body.call, from: HOSTILE.markup, to: HOSTILE.turned, reason: HOSTILE.controls, trunk: HOSTILE.long, call_ids: HOSTILE_LIST, codec: HOSTILE.arabic, addresses: HOSTILE_LIST };
    list.forEach((message, index) => {
      const text = HOSTILE_LIST[index % HOSTILE_LIST.length];
      message.summary = message.status ? `${message.status} ${text}` : `${message.method} sip:${text} SIP/2.0`;
    });
    for (const one of body.decision) Object.assign(one, { detail: HOSTILE.turned, values: { [HOSTILE.markup]: HOSTILE.long, list: HOSTILE_LIST } });
    for (const one of body.events) one.fields = { value: HOSTILE.markup, other: HOSTILE.controls };
    for (const one of body.streams) Object.assign(one, { codec: HOSTILE.turned, protection: HOSTILE.long, path: HOSTILE.markup });
  }
  return body;
}

function full(message, hostile) {
  const first = message.status ? `SIP/2.0 ${message.summary}` : message.summary;
  const headers = [
    first,
    `Via: SIP/2.0/UDP ${message.from};branch=z9hG4bK-${message.index};rport`,
    'Max-Forwards: 69',
    'From: "Alice \\"A\\" Example" <sip:1001@example.com>;tag=a1',
    'To: <sip:600@example.com>',
    `Call-ID: ${message.leg === 0 ? 'c7@192.0.2.10' : 'b2b-7@198.51.100.1'}`,
    `CSeq: ${message.cseq}`,
    'Contact: <sip:1001@192.0.2.1:5060;transport=udp>',
    'P-Asserted-Identity: <sip:+49301001@example.com>',
  ];
  if (hostile) headers.push(...HOSTILE_LIST.map((text, at) => `X-Hostile-${at}: ${text.replace(/[\r\n]/g, '')}`));
  const sdp = message.has_sdp
    ? ['v=0', 'o=- 1 1 IN IP4 192.0.2.1', 's=-', 'c=IN IP4 192.0.2.1', 't=0 0', 'm=audio 20000 RTP/AVP 8 101', 'a=rtpmap:8 PCMA/8000', 'a=rtpmap:101 telephone-event/8000', 'a=sendrecv']
    : [];
  const raw = `${[...headers, sdp.length > 0 ? 'Content-Type: application/sdp' : 'Content-Length: 0', '', ...sdp].join('\r\n')}\r\n`;
  const edits = message.direction === 'out'
    ? [
        { line: 3, before: 'Max-Forwards: 70', after: 'Max-Forwards: 69', rule: null },
        { line: 8, before: 'Contact: <sip:1001@10.0.0.5:5062>', after: headers[7], rule: 'topology hiding' },
        { line: 9, before: null, after: headers[8], rule: hostile ? HOSTILE.markup : 'rule add-identity' },
        { line: null, before: hostile ? `User-Agent: ${HOSTILE.turned}` : 'User-Agent: Phone 1.0', after: null, rule: 'rule drop-agent' },
      ]
    : [
        { line: 3, before: 'Max-Forwards: 69', after: 'Max-Forwards: 68', rule: 'one less at each hop' },
        { line: 9, before: headers[8], after: null, rule: 'rule drop-identity' },
        { line: null, before: null, after: 'X-Added: 1', rule: 'rule add' },
      ];
  return { at: message.at, raw, edits, counterpart: message.index === 2 ? 0 : message.index === 0 ? 2 : null, redacted: false };
}

const TYPES = { html: 'text/html; charset=utf-8', js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml', txt: 'text/plain; charset=utf-8' };
const RANK = { viewer: 0, operator: 1, admin: 2 };

/**
 * Starts the server on a free port of 127.0.0.1.
 * @param {{role?: string, login?: boolean, hostile?: boolean, empty?: boolean, failing?: boolean, port?: number, calls?: number}} options
 */
export async function start(options = {}) {
  const { role = 'admin', login = false, hostile = false, empty = false, port = 0, calls = 240 } = options;
  const state = {
    requests: [],
    loggedIn: !login,
    failing: options.failing ?? false,
    expired: false,
    streams: new Set(),
    trunks: [
      { name: 'pbx', state: 'in', reason: null, calls: 12, calls_max: 100, address: '198.51.100.20:5060', targets: [{ address: '198.51.100.20:5060', up: true }, { address: '198.51.100.21:5060', up: false }] },
      { name: 'carrier-a', state: 'down', reason: 'OPTIONS timeout 4 s', calls: 0, address: 'sip.carrier.example:5061' },
      { name: 'carrier-b', state: 'out', reason: 'disabled by operator', calls: 0, address: '203.0.113.7:5060' },
    ],
    alarms: [
      { id: 1, name: 'trunk_down', since: rfc(START - 400e6), cleared: null, severity: 'major', object: 'carrier-a', help: 'No target of a trunk answers.', text: 'carrier-a: OPTIONS timeout 4 s', acknowledged_by: null, acknowledged_at: null },
      { id: 2, name: 'loss', since: rfc(START - 2000e6), cleared: rfc(START - 1500e6), severity: 'minor', text: 'loss 2.3 % over 60 s', acknowledged_by: 'erika', acknowledged_at: rfc(START - 1900e6) },
      { id: 3, name: 'certificate', since: rfc(Date.now() * 1000 - 200e6), cleared: null, severity: 'critical', text: 'certificate of interface access expires in 3 days', acknowledged_by: null, acknowledged_at: null },
    ],
    live: Array.from({ length: empty ? 0 : 14 }, (_, id) => ({ id: id + 1, call_id: `live${id}@192.0.2.10`, from: String(1000 + id), to: '600', started: rfc(Date.now() * 1000 - id * 9e6), state: id % 4 ? 'answered' : 'offered', trunk: 'pbx', interface: 'access', answered: id % 4 ? rfc(Date.now() * 1000 - id * 8e6) : null, media: [4.36, 3.7].map((mos) => ({ codec: id % 4 ? 'PCMA' : null, loss_percent: id % 4 ? 0.5 : null, jitter_ms: id % 4 ? 1.2 : null, mos: id % 4 ? mos : null })) })),
    registrations: Array.from({ length: empty ? 0 : 60 }, (_, id) => ({ aor: `${1000 + id}@example.com`, contact: `sip:${1000 + id}@10.0.0.${id}:5060`, source: `192.0.2.${id}:5060`, transport: 'udp', expires_s: 3600 - id * 13, interface: 'access' })),
    bans: (empty ? [] : ['203.0.113.66', ...(options.bans ?? [])]).map((source) => ({ source, reason: 'authentication failures', remaining_s: 512 })),
  };
  if (hostile) {
    state.live.forEach((one, at) => Object.assign(one, { from: HOSTILE_LIST[at % 6], to: HOSTILE.turned, trunk: HOSTILE.long, call_id: HOSTILE.markup }));
    state.registrations.forEach((one, at) => Object.assign(one, { aor: `${at} ${HOSTILE_LIST[at % 6]}`, contact: HOSTILE_LIST[(at + 1) % 6], source: HOSTILE.turned }));
    state.trunks.forEach((one, at) => Object.assign(one, { name: `${at} ${HOSTILE_LIST[at]}`, reason: HOSTILE_LIST[at + 1], address: HOSTILE.long }));
    state.alarms.forEach((one, at) => Object.assign(one, { text: HOSTILE_LIST[at], acknowledged_by: at === 1 ? HOSTILE.markup : null }));
    state.bans[0].reason = HOSTILE.markup;
  }
  const now = () => ({ calls_active: 118 + Math.round(Math.sin(Date.now() / 6e4) * 20), calls_per_s: 3.2, registrations: 1240, registrations_per_s: 4.1, rtp_packets_per_s: 11_800, mos: 4.21, cpu: 8.3, memory_mib: 212, drops_per_s: 0.4, answered_ratio: 0.934, store_lost: 0, store_failing: false });
  const session = () => ({ user: state.loggedIn ? 'erika' : null, role, csrf: 'token-1', redact: role === 'viewer', version: '0.1.0', login, oidc: login, store: options.store ?? true });

  const server = createServer(async (request, response) => {
    const { pathname, searchParams: query } = new URL(request.url, 'http://x');
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const text = Buffer.concat(chunks).toString();
    state.requests.push({ method: request.method, path: decodeURIComponent(pathname), query: Object.fromEntries(query), csrf: request.headers['x-csrf-token'], body: text });
    const reply = (status, body, headers = {}) => {
      response.writeHead(status, { 'Content-Type': 'application/json', 'X-Content-Type-Options': 'nosniff', ...headers });
      response.end(typeof body === 'string' || Buffer.isBuffer(body) ? body : JSON.stringify(body));
    };
    const refuse = (status, error, code) => reply(status, { error, code });

    if (!pathname.startsWith('/api/')) {
      const name = pathname === '/' ? 'index.html' : pathname.slice(1);
      if (!/^[\w.-]+$/.test(name)) return reply(404, 'not found', { 'Content-Type': 'text/plain' });
      try {
        return reply(200, readFileSync(join(dist, name)), { 'Content-Type': TYPES[name.split('.').at(-1)] ?? 'text/plain', 'Content-Security-Policy': CSP });
      } catch {
        return reply(404, 'not found', { 'Content-Type': 'text/plain' });
      }
    }
    const path = pathname.slice('/api/v1'.length).split('/').filter(Boolean).map(decodeURIComponent);
    const [first, second, third, fourth] = path;
    const route = `${request.method} ${first}`;
    const changes = request.method !== 'GET';
    if (route === 'POST session') {
      const { user, password } = JSON.parse(text);
      if (user !== 'erika' || password !== 'secret') return refuse(401, 'user or password is wrong', 'credentials');
      state.loggedIn = true;
      state.expired = false;
      return reply(200, session());
    }
    if (route === 'GET session') return state.loggedIn ? reply(200, session()) : refuse(401, 'login needed', 'login');
    if (route === 'GET health') return reply(200, { status: 'ok', checks: { sip: 'ok', store: 'ok', disk: '41 % used' } });
    if (!state.loggedIn || state.expired) return refuse(401, 'login needed', 'login');
    if (changes && request.headers['x-csrf-token'] !== 'token-1') return refuse(403, 'the CSRF token is missing or wrong', 'csrf');
    const needed = changes && first !== 'session' ? (['log-level', 'reload', 'drain'].includes(first) ? 'admin' : 'operator') : first === 'audit' ? 'admin' : third === 'pcap' || third === 'text' ? 'operator' : 'viewer';
    if (RANK[role] < RANK[needed]) return refuse(403, `role ${role} may not do this; it needs ${needed}`, 'role');
    if (state.failing) return refuse(503, 'the border does not answer within 5 s', 'busy');

    if (route === 'DELETE session') {
      state.loggedIn = false;
      return reply(204, '');
    }
    if (route === 'GET calls' && !second) {
      const limit = Number(query.get('limit') ?? 50);
      const from = Number(query.get('cursor') ?? 0);
      if (query.get('address') === 'nonsense') return refuse(400, '"nonsense" is not an IP address', 'address');
      let all = empty ? [] : Array.from({ length: calls }, (_, id) => call(id + 1));
      if (query.get('number')) all = all.filter((one) => one.to === query.get('number') || one.from === query.get('number'));
      if (query.get('outcome') === 'failed') all = all.filter((one) => one.status >= 400);
      if (hostile) all.forEach((one, at) => Object.assign(one, { from: HOSTILE_LIST[at % 6], to: HOSTILE_LIST[(at + 1) % 6], reason: HOSTILE.markup, trunk: HOSTILE.long, codec: HOSTILE.turned }));
      return reply(200, { calls: all.slice(from, from + limit), next: from + limit < all.length ? String(from + limit) : null, incomplete: query.get('text') === 'rare', unread: query.get('words') === 'damage' ? ['partition 20251001-000000000000 of the store cannot be read: file is not a database'] : [] });
    }
    if (route === 'GET calls') {
      if (!/^\d+$/.test(second)) return refuse(404, `no call ${second}`, 'call');
      const body = detail(second, second === '10000' ? 10_000 : 0, hostile);
      if (!third) return reply(200, body);
      if (third === 'pcap') return reply(200, Buffer.from('0a0d0d0a', 'hex'), { 'Content-Type': 'application/octet-stream' });
      if (third === 'text') return reply(200, 'ladder\n', { 'Content-Type': 'text/plain' });
      const message = body.messages[Number(fourth)];
      return message ? reply(200, full(message, hostile)) : refuse(404, 'no such message', 'message');
    }
    if (first === 'live' && second === 'stream') {
      response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
      response.write(`event: overview\ndata: ${JSON.stringify(now())}\n\n`);
      state.streams.add(response);
      request.on('close', () => state.streams.delete(response));
      return undefined;
    }
    if (route === 'GET live') return reply(200, { calls: state.live, total: state.live.length });
    if (route === 'DELETE live') {
      const before = state.live.length;
      state.live = state.live.filter((one) => (third.startsWith('call_id:') ? `call_id:${one.call_id}` !== third : String(one.id) !== third && one.call_id !== third));
      return state.live.length < before ? reply(200, { ended: 1 }) : refuse(404, 'no such call', 'call');
    }
    if (route === 'GET registrations') {
      const list = state.registrations.filter((one) => one.aor.includes(query.get('aor') ?? ''));
      return reply(200, { registrations: list, total: list.length });
    }
    if (route === 'DELETE registrations') {
      state.registrations = state.registrations.filter((one) => one.aor !== second);
      return reply(200, { removed: 1 });
    }
    if (route === 'GET trunks') return reply(200, { trunks: empty ? [] : state.trunks });
    if (route === 'PUT trunks') {
      const trunk = state.trunks.find((one) => one.name === second);
      if (!trunk) return refuse(404, 'no such trunk', 'trunk');
      trunk.state = JSON.parse(text).enabled ? 'in' : 'out';
      return reply(200, trunk);
    }
    if (route === 'GET overview') {
      const seconds = Number(query.get('seconds') ?? 3600);
      const end = Math.floor(Date.now() / 5000) * 5;
      const at = Array.from({ length: seconds / 5 }, (_, number) => end - seconds + 5 + number * 5);
      const wave = (base, size, period) => at.map((time) => Math.round((base + Math.sin(time / period) * size + Math.sin(time / 7) * size * 0.1) * 100) / 100);
      const series = { at, calls_active: wave(118, 30, 300), calls_per_s: wave(3.2, 0.8, 200), registrations: wave(1240, 20, 900), rtp_packets_per_s: wave(11_800, 900, 300), mos: wave(4.2, 0.1, 150).map((value, number) => (number % 97 === 0 ? null : value)), cpu: wave(8, 2, 200), memory_mib: wave(212, 4, 600), drops_per_s: wave(0.4, 0.4, 90).map((value) => Math.max(0, value)) };
      return reply(200, { now: now(), series });
    }
    if (route === 'GET drops') return reply(200, { drops: [{ reason: 'media_unexpected_source', total: 18_231, per_s: 0.4, help: 'RTP from an address that is not the locked peer.' }, { reason: 'sip_malformed', total: 12, per_s: 0, help: 'A message that is no SIP.' }, { reason: 'rate_limit', total: 0, per_s: 0, help: 'More requests than the limit of the source.' }] });
    if (route === 'GET alarms') return reply(200, { alarms: empty ? [] : state.alarms });
    if (route === 'POST alarms') {
      const alarm = state.alarms.find((one) => String(one.id) === second);
      if (!alarm) return refuse(404, 'no such alarm', 'alarm');
      Object.assign(alarm, { acknowledged_by: 'erika', acknowledged_at: rfc(Date.now() * 1000) });
      return reply(200, alarm);
    }
    if (route === 'GET reports') return reply(200, { reports: empty ? [] : [{ name: 'capacity-2026-11-25', title: hostile ? HOSTILE.markup : 'Capacity of the border, UDP', started: rfc(START), verdict: 'passed' }, { name: 'registrations-storm', title: 'Registration storm', started: rfc(START - 86_400e6), verdict: 'failed' }] });
    if (route === 'GET audit') return reply(200, { entries: [{ at: rfc(START), user: hostile ? HOSTILE.markup : 'erika', role: 'admin', source: '192.0.2.99', action: 'PUT /trunks/pbx', value: 'enabled=false', outcome: '200' }, { at: rfc(START - 60e6), user: null, role: null, source: '203.0.113.66', action: 'POST /session', value: '', outcome: '401' }], next: null });
    if (route === 'GET tunnels') return reply(200, { tunnels: empty ? [] : [{ name: 'branch', up: true, since: rfc(START), peer: '192.0.2.80:4500', identity: hostile ? HOSTILE.markup : 'branch.example', algorithms: 'AES-GCM-16', sealed: 120_400, opened: 118_900 }, { name: 'depot', up: false, since: rfc(START), peer: null, identity: '', algorithms: '', sealed: 0, opened: 0 }] });
    if (route === 'GET nodes') return reply(200, { nodes: empty ? [] : [{ name: 'media-1', control: '192.0.2.50:2223', up: true, drain: false, calls: 61, sessions: 122 }, { name: 'media-2', control: '192.0.2.51:2223', up: false, drain: false, calls: 0, sessions: null }] });
    if (route === 'GET limits') return reply(200, { calls: 2000, registrations: 10_000, transactions: 50_000, connections: 4096 });
    if (route === 'GET log-level') return reply(200, { level: 'warn' });
    if (route === 'GET bans') return reply(200, { bans: state.bans });
    if (route === 'PUT limits' || route === 'PUT log-level' || route === 'POST reload' || route === 'POST drain') return reply(200, {});
    if (route === 'DELETE bans') {
      state.bans = state.bans.filter((one) => one.source !== second);
      return reply(200, { removed: 1 });
    }
    return refuse(404, 'unknown path', 'path');
  });
  await new Promise((resolve) => server.listen(port, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    state,
    /** Sends an event to every open stream. */
    push(name, data) {
      for (const stream of state.streams) stream.write(`event: ${name}\ndata: ${JSON.stringify(data)}\n\n`);
    },
    async stop() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
