// The page of a call that passed two borders, in Chromium; `crates/hornwork/tests/suite/shared_history.rs` starts the borders and the
// database, makes calls and sets the variables.
import assert from 'node:assert/strict';
import { close, open } from './browser.mjs';

const { CONSOLE_URL: url, CONSOLE_CALL: id, CONSOLE_FOLDER: folder } = process.env;
assert.ok(url && id && folder, 'CONSOLE_URL, CONSOLE_CALL and CONSOLE_FOLDER are needed');

try {
  const tab = await open(url);
  const { page } = tab;
  await page.goto(`${url}/#/calls/${id}`);
  await page.waitForSelector('[role=listbox]');
  assert.deepEqual(await page.locator('.who b').allTextContents(), ['caller', 'edge-1', 'edge-2', 'callee']);
  assert.equal(await page.locator('.who.border').count(), 2);
  // Each INVITE one column further to the right.
  await page.fill('#filter', 'INVITE sip:');
  const arrow = page.locator('.row', { has: page.locator('.arrow.request') });
  await page.waitForFunction(() => document.querySelectorAll('.row').length === 3);
  const places = await arrow.evaluateAll((rows) => rows.map((row) => row.querySelector('.arrow').getBoundingClientRect().left));
  assert.equal(places.length, 3);
  assert.ok(places[0] < places[1] && places[1] < places[2], String(places));
  const words = await arrow.locator('.sr').allTextContents();
  for (const [at, ends] of [[0, /^, caller .* to edge-1 /], [1, /^, edge-1 .* to edge-2 /], [2, /^, edge-2 .* to callee /]]) assert.match(words[at], ends);
  // The counterpart is the one at the same border.
  await arrow.nth(2).click();
  await page.waitForFunction(() => document.querySelector('.raw')?.textContent.includes('m=audio'));
  await page.waitForFunction(() => document.querySelectorAll('.row')[1]?.classList.contains('pair'));
  await page.fill('#filter', '');
  // Decisions under the name of their border.
  const names = await page.locator('ol.decision h3').allTextContents();
  assert.deepEqual(names, ['edge-1', 'edge-2']);
  const steps = await page.locator('ol.decision li').evaluateAll((items) => items.map((item) => item.querySelector('h3, b').textContent));
  const second = steps.indexOf('edge-2');
  for (const part of [steps.slice(1, second), steps.slice(second + 1)]) {
    for (const what of ['received', 'routed', 'sent', 'answered', 'ended']) assert.ok(part.includes(what), `${what}: ${steps}`);
  }
  assert.ok((await page.locator('.facts').textContent()).includes('edge-1 → edge-2'));
  assert.deepEqual(await tab.axe(), []);
  await page.screenshot({ path: `${folder}/borders.png`, fullPage: true });
  assert.deepEqual(tab.errors, []);
  await tab.close();
} finally {
  await close();
}
