// The page of a call whose caller is behind an emulated link that loses packets, in Chromium;
// `crates/hornwork/tests/suite/pages.rs` starts border, phones and link, and sets the variables.
import assert from 'node:assert/strict';
import { close, open } from './browser.mjs';

const { CONSOLE_URL: url, CONSOLE_NUMBER: number, CONSOLE_FOLDER: folder } = process.env;
assert.ok(url && number && folder, 'CONSOLE_URL, CONSOLE_NUMBER and CONSOLE_FOLDER are needed');

try {
  const tab = await open(url);
  const { page } = tab;
  await tab.go(`#/search?number=${number}`);
  await page.locator('a.row').first().click();
  await page.waitForSelector('.streams tbody tr');
  const heads = await page.locator('.streams thead th').allTextContents();
  const place = heads.findIndex((head) => /loss/i.test(head));
  assert.ok(place >= 0, `a column with the loss: ${heads}`);
  const id = new URL(page.url()).hash.split('/').at(-1).split('?')[0];
  const detail = await page.evaluate(async (path) => (await fetch(path)).json(), `/api/v1/calls/${id}`);
  const side = (name) => detail.streams.find((stream) => stream.side === name);
  const [caller, callee] = [side('caller'), side('callee')];
  console.log(JSON.stringify([caller, callee].map(({ packets_received, loss_percent, mos }) => ({ packets_received, loss_percent, mos }))));
  // Of packets from the caller to the border only.
  assert.ok(caller.loss_percent >= 3 && caller.loss_percent <= 7, `${caller.loss_percent}`);
  assert.equal(callee.loss_percent, 0);
  assert.ok(caller.mos < callee.mos, `${caller.mos} < ${callee.mos}`);
  assert.ok(caller.intervals.some((one) => one.loss_percent > 0));
  // The page has the same figures.
  const rows = await page.locator('.streams tbody tr').all();
  const shown = await Promise.all(rows.map((row) => row.locator('td, th').allTextContents()));
  const losses = shown.map((cells) => Number.parseFloat(cells[place]));
  assert.equal(losses.filter((loss) => loss >= 3 && loss <= 7).length, 1, JSON.stringify(shown));
  assert.equal(losses.filter((loss) => loss === 0).length, 1, JSON.stringify(shown));
  assert.deepEqual(await tab.axe(), []);
  await page.screenshot({ path: `${folder}/loss.png`, fullPage: true });
  assert.deepEqual(tab.errors, []);
  await tab.close();
  console.log('the loss of the link is on the page');
} finally {
  await close();
}
