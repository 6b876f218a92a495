// Drives the console of a running border in Chromium; `crates/hornwork/tests/suite/pages.rs` starts the border, makes calls and sets
// the variables. Every step prints a line, so that a failure shows how far it came.
import assert from 'node:assert/strict';
import { close, open } from './browser.mjs';

const { CONSOLE_URL: url, CONSOLE_PASSWORD: password, CONSOLE_NUMBER: number, CONSOLE_FOLDER: folder } = process.env;
assert.ok(url && password && number && folder, 'CONSOLE_URL, CONSOLE_PASSWORD, CONSOLE_NUMBER and CONSOLE_FOLDER are needed');

const step = (text) => console.log(text);

async function login(tab, user) {
  await tab.page.goto(`${url}/`);
  await tab.page.fill('[name=user]', user);
  await tab.page.fill('[name=password]', password);
  await tab.page.keyboard.press('Enter');
  await tab.page.waitForSelector('h1:text("Overview")');
}

async function asOperator() {
  const tab = await open(url, { tolerate: /401/ });
  const { page } = tab;
  await login(tab, 'operator');
  step('operator: logged in');
  await page.waitForSelector('.tiles');
  await page.waitForSelector('header [role=status]:text-is("live")');

  // First, because a call without media ends after a minute.
  await tab.go('#/live');
  const standing = page.getByRole('button', { name: /^Hang up .*4930602/ });
  await standing.click();
  await page.getByRole('dialog').getByRole('button', { name: 'Hang up' }).click();
  await standing.waitFor({ state: 'detached' });
  step('operator: call ended');
  await tab.go('#/overview');
  assert.deepEqual(await tab.axe(), []);

  // A call by its number, with the keyboard only.
  await page.keyboard.press('/');
  await page.waitForFunction(() => document.activeElement?.id === 'f-number');
  await page.keyboard.type(number);
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.activeElement?.matches('a.row'));
  await page.keyboard.press('Enter');
  await page.waitForSelector('[role=listbox]');
  assert.deepEqual(await page.locator('.who b').allTextContents(), ['caller', 'border', 'callee']);
  assert.ok((await page.locator('ol.decision li').count()) >= 4);
  step('operator: call and ladder');
  await page.locator('[role=listbox]').focus();
  await page.keyboard.press('Home');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelector('.raw')?.textContent.includes('m=audio'));
  await page.getByRole('button', { name: 'Other leg' }).click();
  await page.waitForSelector('.raw ins');
  const sent = await page.locator('.raw').textContent();
  for (const part of ['Via:', 'Call-ID:', 'changed: ']) assert.ok(sent.includes(part), sent);
  assert.deepEqual(await tab.axe(), []);
  await page.screenshot({ path: `${folder}/call.png`, fullPage: true });
  step('operator: message with edits');
  const [capture] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Export pcapng' }).click()]);
  await capture.saveAs(`${folder}/call.pcapng`);
  step('operator: pcapng saved');

  // Media of a call with RTP.
  await tab.go('#/search?number=4930700');
  await page.locator('a.row').first().click();
  await page.waitForSelector('.u-over');
  const streams = await page.locator('.streams tbody tr').allTextContents();
  assert.equal(streams.length, 2);
  for (const text of streams) assert.match(text, /opus/);
  const id = new URL(page.url()).hash.split('/').at(-1);
  const detail = await page.evaluate(async (path) => (await fetch(path)).json(), `/api/v1/calls/${id}`);
  for (const { side, packets_received, intervals } of detail.streams) {
    assert.ok(intervals.length >= 2, `${side}: ${JSON.stringify(intervals)}`);
    const packets = intervals.reduce((sum, one) => sum + one.packets_received, 0);
    assert.equal(packets, packets_received, `${side}: the intervals are the whole call`);
    assert.ok(intervals.every((one) => one.mos > 3 && one.loss_percent !== null && one.jitter_ms !== null), JSON.stringify(intervals));
  }
  await page.screenshot({ path: `${folder}/media.png`, fullPage: true });
  step('operator: media');

  // Values of a hostile caller are text.
  await tab.go('#/search?number=4930601');
  await page.locator('a.row').first().click();
  await page.waitForSelector('[role=listbox]');
  await page.locator('.row').first().click();
  await page.waitForFunction(() => document.querySelector('.raw')?.textContent.includes('<script>'));
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator('main script, main img').count(), 0);
  step('operator: hostile values are text');

  await tab.go('#/alarms');
  await page.getByRole('button', { name: /^Acknowledge/ }).first().click();
  await page.waitForFunction(() => /operator \d{4}-/.test(document.querySelector('main').textContent));
  step('operator: alarm acknowledged');

  for (const path of ['registrations', 'drops', 'reports', 'system', 'trunks']) {
    await tab.go(`#/${path}`);
    assert.equal(await page.locator('[role=alert]').count(), 0, path);
    assert.deepEqual(await tab.axe(), [], path);
  }
  await page.getByRole('button', { name: 'Out of service server' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Out of service' }).click();
  await page.getByRole('button', { name: 'In service server' }).click();
  await page.getByRole('button', { name: 'Out of service server' }).waitFor();
  step('operator: trunk out of and in service');

  await page.getByRole('button', { name: 'Log out' }).click();
  await page.waitForSelector('h1:text("Log in")');
  assert.deepEqual(tab.errors, []);
  await tab.close();
}

async function asViewer() {
  const tab = await open(url, { tolerate: /40[13]/, theme: 'dark', width: 360, height: 740 });
  const { page } = tab;
  await login(tab, 'viewer');
  await tab.go(`#/search?number=${number}`);
  await page.locator('a.row').first().click();
  await page.waitForSelector('[role=listbox]');
  assert.equal(await page.getByRole('button', { name: /Export|Hang up/ }).count(), 0);
  await page.locator('.row').first().click();
  await page.waitForFunction(() => document.querySelector('.raw')?.textContent.includes('INVITE'));
  assert.ok(!(await page.locator('.raw').textContent()).includes('m=audio'));
  const status = await page.evaluate(async () => {
    const session = await (await fetch('/api/v1/session')).json();
    return (await fetch('/api/v1/live/calls/1', { method: 'DELETE', headers: { 'X-CSRF-Token': session.csrf } })).status;
  });
  assert.equal(status, 403);
  for (const path of ['overview', 'search', 'live', 'trunks', 'alarms', 'system']) {
    await tab.go(`#/${path}`);
    const [wide, seen] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
    assert.ok(wide <= seen, `${path}: ${wide} pixels in ${seen}`);
    assert.deepEqual(await tab.axe(), [], path);
  }
  await page.screenshot({ path: `${folder}/viewer.png`, fullPage: true });
  step('viewer: sees calls without bodies, and is refused');
  assert.deepEqual(tab.errors, []);
  await tab.close();
}

try {
  await asOperator();
  await asViewer();
} finally {
  await close();
}
