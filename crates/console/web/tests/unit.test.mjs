// Functions of the pages without a browser, and the build itself.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createServer } from 'vite';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
let server;
let load;

before(async () => {
  server = await createServer({ root, server: { middlewareMode: true, hmr: false, ws: false }, appType: 'custom', logLevel: 'error' });
  load = (name) => server.ssrLoadModule(`/src/lib/${name}.ts`);
});
after(() => server?.close());

test('invisible characters are escaped, letters of all languages stay', async () => {
  const { visible, shortened } = await load('text');
  assert.equal(visible('a\u202eb\u0000\u001b[2J\u200b'), 'a\\u{202e}b\\x00\\x1b[2J\\u{200b}');
  assert.equal(visible('مرحبا <b>"ü"'), 'مرحبا <b>"ü"');
  assert.equal(visible(null), '');
  assert.equal(visible({ a: [1] }), '{"a":[1]}');
  assert.equal(shortened('x'.repeat(50), 10).length, 10);
});

test('requests tell for how long the user did nothing', async () => {
  const api = await load('api');
  const { fetch, Date: { now } } = globalThis;
  const told = [];
  globalThis.fetch = async (path, init) => {
    told.push([init.headers['X-Idle-Seconds'], init.headers['Content-Type']]);
    return new Response('{}');
  };
  try {
    const start = now();
    Date.now = () => start;
    api.noteInput();
    Date.now = () => start + 90_900;
    await api.get('/alarms');
    api.noteInput();
    await api.change('PUT', '/limits', {});
    // The clock of the machine was set back.
    Date.now = () => start;
    await api.session();
  } finally {
    globalThis.fetch = fetch;
    Date.now = now;
  }
  assert.deepEqual(told, [['90', undefined], ['0', 'application/json'], ['0', undefined]]);
});

test('times keep their microseconds', async () => {
  const { micros, clock, dateTime, distance, duration } = await load('format');
  const time = micros('2026-11-25T21:59:54.123456Z');
  assert.equal(clock(time, 6), '21:59:54.123456');
  assert.equal(micros('2026-11-25T22:59:54.123456+01:00'), time);
  assert.equal(micros('2026-11-25T21:59:54.1Z') - micros('2026-11-25T21:59:54Z'), 100_000);
  assert.equal(dateTime('2026-11-25T21:59:54.123456Z', 3), '2026-11-25 21:59:54.123');
  assert.ok(Number.isNaN(micros('yesterday')) && Number.isNaN(micros('')));
  assert.equal(dateTime('nonsense'), '');
  assert.equal(distance(213), '+0.000213');
  assert.deepEqual([duration(59.96), duration(125), duration(3723), duration(null)], ['60.0 s', '2:05', '1:02:03', '']);
});

test('jitter has the decimals of its source', async () => {
  const { jitter } = await load('format');
  assert.deepEqual([{ jitter_ms: 1, jitter_whole_ms: true }, { jitter_ms: 1, jitter_whole_ms: false }, { jitter_ms: 0.34 }, { jitter_ms: null }].map(jitter), ['1', '1.00', '0.34', '–']);
});

test('parts of a message join to its text, in linear time', async () => {
  const { lines, tokens } = await load('sip');
  const raw = 'INVITE sip:600@x SIP/2.0\r\nFrom: "A \\" <b>" <sip:a@b;x=y>;tag=1\r\n folded;a=b\r\nnonsense\r\n\r\nv=0\r\na=rtpmap:8 PCMA/8000\r\n';
  const all = lines(raw);
  assert.equal(all.length, 7);
  for (const [at, line] of all.entries()) assert.equal(tokens(line, at === 0).map((token) => token.text).join(''), line.text);
  const kinds = tokens(all[1], false).map((token) => [token.kind, token.text]);
  assert.deepEqual(kinds.filter(([kind]) => kind !== ''), [['name', 'From'], ['text', '"A \\" <b>"'], ['uri', '<sip:a@b;x=y>'], ['param', ';tag']]);
  assert.deepEqual(tokens({ text: 'SIP/2.0 486 Busy Here', body: false }, true).map((token) => token.kind), ['', 'status']);
  const began = performance.now();
  for (const part of ['"\\', '<', ';a', '";<']) {
    const hostile = lines(`X: ${part.repeat(1_900 / part.length)}\r\n`.repeat(32));
    for (const line of hostile) assert.equal(tokens(line, false).map((token) => token.text).join(''), line.text);
    assert.equal(tokens({ text: `X: ${part.repeat(30_000)}`, body: false }, false).length, 1);
  }
  assert.ok(performance.now() - began < 1000);
});

const message = (index, leg, direction, summary, more = {}) => {
  const status = Number(/^\d{3}/.exec(summary)?.[0] ?? NaN);
  const peer = leg === 0 ? 'a' : 'b';
  return { index, at: `2026-11-25T20:00:0${index % 10}.000000Z`, leg, direction, from: direction === 'in' ? peer : 'border', to: direction === 'in' ? 'border' : peer, transport: 'udp', summary, method: status ? null : summary.split(' ')[0], status: status || null, cseq: '1 INVITE', has_sdp: false, size: 1, ...more };
};

test('a ladder has both legs around the border and pairs their messages', async () => {
  const { ladder } = await load('ladder');
  const { participants, rows } = ladder(
    [message(0, 0, 'in', 'INVITE x'), message(1, 1, 'out', 'INVITE x'), message(2, 1, 'out', 'INVITE x'), message(3, 1, 'in', '180 Ringing'), message(4, 0, 'out', '180 Ringing'), message(5, 0, 'out', '100 Trying')],
    [{ at: '2026-11-25T20:00:01.500000Z', name: 'call_routed', fields: {} }],
    [{ side: 'callee', started: '2026-11-25T20:00:03Z', ended: null }],
  );
  assert.deepEqual(participants.map((one) => one.role), ['caller', 'border', 'callee']);
  assert.deepEqual(rows.map((row) => row.kind), ['message', 'message', 'event', 'message', 'message', 'stream', 'message', 'message']);
  const messages = rows.filter((row) => row.kind === 'message');
  assert.deepEqual(messages.map((row) => row.pair), [1, 0, 0, 4, 3, null]);
  assert.deepEqual(messages.map((row) => [row.from, row.to]), [[0, 1], [1, 2], [1, 2], [2, 1], [1, 0], [1, 0]]);
  assert.deepEqual(messages.map((row) => row.repeated), [false, false, true, false, false, false]);
});

test('a peer on both legs has two columns, agents have no border, many peers share one', async () => {
  const { ladder } = await load('ladder');
  const same = ladder([message(0, 0, 'in', 'INVITE x', { from: 'p' }), message(1, 1, 'out', 'INVITE x', { to: 'p' })], [], []);
  assert.deepEqual(same.participants.map((one) => one.role), ['caller', 'border', 'callee']);
  const seen = ladder([message(0, null, 'observed', 'INVITE x', { from: 'p', to: 'q' })], [], []);
  assert.deepEqual(seen.participants.map((one) => one.addresses), [['p'], ['q']]);
  const many = ladder(Array.from({ length: 40 }, (_, index) => message(index, 1, 'out', 'INVITE x', { to: `t${index}` })), [], []);
  assert.equal(many.participants.length, 12);
  assert.ok(many.rows.every((row) => row.from < 12 && row.to < 12));
  const event = { at: new Date(Date.UTC(2026, 10, 25, 20)).toISOString().replace('Z', '000Z'), name: 'call_routed', fields: {}, node: null };
  const at = (one) => ({ ...one, at: event.at });
  const turn = [at(message(0, 0, 'in', 'INVITE x')), at(message(1, 0, 'out', '100 Trying')), at(message(2, 1, 'out', 'INVITE y'))];
  assert.deepEqual(
    ladder(turn, [event], []).rows.map((row) => (row.kind === 'event' ? row.event.name : row.message.summary)),
    ['INVITE x', 'call_routed', '100 Trying', 'INVITE y'],
    'events stand before the messages of the same microsecond that they explain',
  );
  assert.deepEqual(ladder([], [], []), { participants: [], rows: [] });
});

test('a call through two borders is one ladder, with the legs of each border paired', async () => {
  const { ladder } = await load('ladder');
  const at = (node, rest) => ({ node, ...rest });
  const [a, b] = ['192.0.2.2:5060', '192.0.2.3:5060'];
  const messages = [
    message(0, 0, 'in', 'INVITE x', at('edge-1', { from: 'caller', to: a })),
    message(1, 1, 'out', 'INVITE x', at('edge-1', { from: a, to: 'refuses' })),
    message(2, 1, 'out', 'INVITE x', at('edge-1', { from: a, to: b })),
    // The copy that edge-2 received is not in the list.
    message(3, 2, 'out', 'INVITE x', at('edge-2', { from: b, to: 'callee' })),
    message(4, 2, 'in', '200 OK', at('edge-2', { status: 200, method: null, from: 'callee', to: b })),
    message(5, 1, 'out', '200 OK', at('edge-2', { status: 200, method: null, from: b, to: a })),
    message(6, 0, 'out', '200 OK', at('edge-1', { status: 200, method: null, from: a, to: 'caller' })),
  ];
  const stream = (node, side) => ({ node, side, started: '2026-11-25T12:00:00Z', ended: null });
  const { participants, rows } = ladder(messages, [], [stream('edge-2', 'caller'), stream('edge-2', 'callee'), stream('edge-1', 'callee')]);
  assert.deepEqual(participants.map((one) => one.role), ['caller', 'edge-1', 'edge-2', 'callee', 'callee']);
  assert.deepEqual(participants.map((one) => one.border), [false, true, true, false, false]);
  assert.deepEqual(participants.map((one) => one.addresses), [['caller'], [a], [b], ['refuses'], ['callee']]);
  const arrows = rows.filter((row) => row.kind === 'message').map((row) => [row.from, row.to, row.pair]);
  assert.deepEqual(arrows, [[0, 1, 1], [1, 3, 0], [1, 2, 0], [2, 4, 2], [4, 2, 5], [2, 1, 4], [1, 0, 5]]);
  const media = rows.filter((row) => row.kind === 'stream').map((row) => [row.from, row.to]);
  assert.deepEqual(media, [[1, 2], [4, 2], [3, 1]]);
});

test('a border with two interfaces has both addresses, and a message those that it had', async () => {
  const { direction, ladder } = await load('ladder');
  const [inner, outer] = ['127.20.0.10:5060', '127.20.0.11:5060'];
  const messages = [
    message(0, 0, 'in', 'INVITE x', { from: '127.20.0.2:5060', to: inner }),
    message(1, 1, 'out', 'INVITE x', { from: outer, to: '127.20.0.3:5060' }),
  ];
  const { participants, rows } = ladder(messages, [], [{ side: 'caller', started: '2026-11-25T20:00:05Z', ended: null }]);
  assert.deepEqual(participants.map((one) => one.addresses), [['127.20.0.2:5060'], [inner, outer], ['127.20.0.3:5060']]);
  assert.deepEqual(rows.map((row) => direction(row, participants)), [
    `caller 127.20.0.2:5060 to border ${inner}`,
    `border ${outer} to callee 127.20.0.3:5060`,
    `caller 127.20.0.2:5060 to border ${inner}, ${outer}`,
  ]);
  assert.equal(direction({ kind: 'event' }, participants), '');
});

test('the time axis has the intervals of streams, and the present time of a call in progress', async () => {
  const { ladder, timeBounds } = await load('ladder');
  const seconds = (text) => Date.parse(text) / 1000;
  const { rows } = ladder([message(0, 0, 'in', 'INVITE x'), message(2, 0, 'in', 'ACK x')], [], []);
  const stream = { side: 'caller', intervals: [{ at: '2026-11-25T20:00:12Z' }, { at: '2026-11-25T20:00:22Z' }] };
  const within = ({ from, until }, first, last) => {
    assert.ok(from < seconds(first) && from > seconds(first) - 1, `${from}`);
    assert.ok(until > seconds(last) && until < seconds(last) + 1, `${until}`);
  };
  within(timeBounds(rows, [], null), '2026-11-25T20:00:00Z', '2026-11-25T20:00:02Z');
  within(timeBounds(rows, [stream], null), '2026-11-25T20:00:00Z', '2026-11-25T20:00:22Z');
  within(timeBounds(rows, [stream], seconds('2026-11-25T20:00:25Z')), '2026-11-25T20:00:00Z', '2026-11-25T20:00:25Z');
  // A clock that is behind hides nothing.
  within(timeBounds(rows, [stream], seconds('2026-11-25T19:00:00Z')), '2026-11-25T20:00:00Z', '2026-11-25T20:00:22Z');
  assert.ok(timeBounds([], [], null).from < timeBounds([], [], null).until);
});

test('active alarms are counted with the acknowledged ones, and apart', async () => {
  const { countAlarms } = await load('alarms');
  const alarm = (more) => ({ cleared: null, acknowledged_by: null, acknowledged_at: null, ...more });
  const all = [alarm(), alarm({ acknowledged_by: 'erika' }), alarm({ cleared: '2026-11-25T20:00:00Z' })];
  assert.deepEqual(countAlarms(all), { active: 2, unacknowledged: 1 });
});

test('ten thousand messages become a ladder quickly', async () => {
  const { ladder } = await load('ladder');
  const all = Array.from({ length: 10_000 }, (_, index) => message(index, index % 2, index % 3 ? 'in' : 'out', 'OPTIONS x', { at: '2026-11-25T20:00:00.000000Z' }));
  const began = performance.now();
  ladder(all, [], []);
  const took = performance.now() - began;
  assert.ok(took < 1000, `${took} ms`);
});

test('the build is deterministic, small, and asks for nothing from outside', () => {
  const folder = mkdtempSync(join(tmpdir(), 'console-'));
  try {
    execFileSync('npx', ['vite', 'build', '--logLevel', 'error'], { cwd: root, env: { ...process.env, CONSOLE_OUT: folder } });
    const names = readdirSync(folder).sort();
    assert.deepEqual(names, ['app.css', 'app.js', 'icon.svg', 'index.html', 'licenses.txt']);
    for (const name of names) assert.ok(readFileSync(join(folder, name)).equals(readFileSync(join(root, 'dist', name))), `${name} differs from dist; run: npm run build`);
    const size = names.reduce((sum, name) => sum + statSync(join(folder, name)).size, 0);
    console.log(`dist: ${size} bytes`);
    assert.ok(size < 400 * 1024);
    const page = readFileSync(join(folder, 'index.html'), 'utf8');
    assert.doesNotMatch(page, /https?:|<style|\sstyle=|<script(?![^>]*\ssrc=)|\son\w+=/);
    assert.doesNotMatch(readFileSync(join(folder, 'app.css'), 'utf8'), /url\(|@import/);
    assert.doesNotMatch(readFileSync(join(folder, 'app.js'), 'utf8'), /\beval\(|new Function\(/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
