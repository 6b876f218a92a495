// The pages in Chromium against the mock server.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { close, open } from './browser.mjs';
import { HOSTILE, RUNNING, start } from './mock.mjs';

const PAGES = ['overview', 'search', 'calls/7', 'live', 'registrations', 'trunks', 'drops', 'alarms', 'reports', 'system', 'audit'];

after(close);

/** A server and a page of it for one test. */
async function using(options, view, body) {
  const mock = await start(options);
  const tab = await open(mock.url, view);
  try {
    await body(tab, mock);
    assert.deepEqual(tab.errors, []);
  } finally {
    await tab.close();
    await mock.stop();
  }
}

test('every page loads without an error in the console, and its title names it', async () => {
  await using({}, {}, async ({ page, go }) => {
    const titles = new Set();
    for (const path of PAGES) {
      await go(`#/${path}`);
      titles.add(await page.title());
      assert.equal(await page.locator('[role=alert]').count(), 0, path);
      assert.equal(await page.locator('h1').count(), 1, path);
    }
    assert.equal(titles.size, PAGES.length);
  });
});

test('the page of a call in progress has its streams and the addresses of both interfaces', async () => {
  await using({}, {}, async ({ page, go, axe }) => {
    await go(`#/calls/${RUNNING}`);
    const border = page.locator('.who.border');
    assert.match(await border.textContent(), /192\.0\.2\.1:5060.*198\.51\.100\.1:5060/s);
    const sent = page.locator('.row', { hasText: 'INVITE' }).nth(1);
    assert.match(await sent.locator('.sr').textContent(), /border 198\.51\.100\.1:5060 to callee/);
    const heading = await page.locator('.columns').boundingBox();
    assert.ok(heading.height >= (await border.boundingBox()).height, 'the heading holds both addresses');
    assert.deepEqual(await axe(), []);
  });
});

test('without a store the search says so and asks nothing', async () => {
  await using({ store: false }, {}, async ({ page, go }, mock) => {
    await go('#/search');
    await page.waitForSelector('.notice.warning');
    assert.equal(mock.state.requests.filter((one) => one.path === '/api/v1/calls').length, 0);
    await go('#/live');
    assert.equal(await page.locator('a.row').count(), 0);
  });
});

test('pages without data say so', async () => {
  await using({ empty: true }, {}, async ({ page, go }) => {
    for (const path of ['search', 'live', 'registrations', 'trunks', 'alarms', 'reports']) {
      await go(`#/${path}`);
      await page.waitForSelector('td.empty');
    }
  });
});

for (const theme of ['light', 'dark']) {
  const colours = theme === 'dark';
  test(`axe finds no violation at AA, ${theme}`, async () => {
    await using({}, { theme }, async ({ page, go, axe }) => {
      const found = [];
      for (const path of PAGES) {
        await go(`#/${path}`);
        if (path === 'calls/7') {
          await page.locator('.row').nth(3).click();
          await page.waitForSelector('ins');
        }
        found.push(...(await axe(colours)).map((one) => `${path}: ${one}`));
      }
      await page.getByRole('button', { name: 'Keys' }).click();
      found.push(...(await axe(colours)).map((one) => `keys: ${one}`));
      assert.deepEqual(found, []);
    });
    await using({ login: true }, { theme, tolerate: /401/ }, async ({ page, go, axe }) => {
      await go('');
      await page.fill('[name=user]', 'erika');
      await page.fill('[name=password]', 'wrong');
      await page.keyboard.press('Enter');
      await page.waitForSelector('[role=alert]');
      assert.deepEqual(await axe(colours), []);
    });
  });
}

test('the theme switch wins over the system and lasts', async () => {
  await using({}, { theme: 'light' }, async ({ page, go }) => {
    await go('#/drops');
    const background = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    const light = await background();
    await page.selectOption('#theme', 'dark');
    const dark = await background();
    assert.notEqual(light, dark);
    await page.reload();
    await page.waitForSelector('h1');
    assert.equal(await background(), dark);
    await page.selectOption('#theme', 'system');
    assert.equal(await background(), light);
  });
});

test('no page scrolls sideways at 360 pixels', async () => {
  for (const hostile of [false, true]) {
    await using({ hostile }, { width: 360, height: 740 }, async ({ page, go, axe }) => {
      for (const path of PAGES) {
        await go(`#/${path}`);
        const [wide, seen] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
        assert.ok(wide <= seen, `${path}: ${wide} pixels in ${seen}`);
        if (!hostile) assert.deepEqual(await axe(), [], path);
      }
      await page.getByRole('button', { name: 'Menu' }).click();
      await page.getByRole('link', { name: 'Trunks' }).click();
      await page.waitForSelector('h1:text("Trunks")');
      assert.equal(await page.locator('nav').isVisible(), false);
    });
  }
});

test('at 360 pixels a message covers the page and closes', async () => {
  await using({}, { width: 360, height: 740 }, async ({ page, go }) => {
    await go('#/calls/7');
    await page.locator('.row').nth(3).click();
    await page.waitForSelector('.raw ins');
    const box = await page.locator('section.panel').boundingBox();
    assert.ok(box.width > 330 && box.height > 700, JSON.stringify(box));
    await page.getByRole('button', { name: 'Close' }).click();
    assert.equal(await page.locator('section.panel').count(), 0);
  });
});

test('hostile values are shown as text', async () => {
  await using({ hostile: true }, {}, async ({ page, go }) => {
    for (const path of PAGES) {
      await go(`#/${path}`);
      if (path === 'calls/7') {
        await page.locator('.row').nth(3).click();
        await page.waitForSelector('.raw ins');
      }
      const shows = ['search', 'calls/7', 'live', 'registrations', 'trunks', 'alarms'].includes(path);
      // Tables come after the page.
      if (shows) await page.waitForFunction(() => document.body.textContent.includes('<script>'));
      const seen = await page.evaluate(() => ({ text: document.body.textContent, hacked: window.hacked, scripts: document.querySelectorAll('main script, main img').length }));
      assert.equal(seen.hacked, undefined, path);
      assert.equal(seen.scripts, 0, path);
      // Characters that turn the direction or control a terminal are escaped.
      assert.doesNotMatch(seen.text.replace(/[\n\t]/g, ''), /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/, path);
      if (shows) {
        assert.ok(seen.text.includes('<script>'), path);
        assert.ok(seen.text.includes('\\u{202e}'), path);
      }
    }
    assert.ok(HOSTILE.long.length > 3000);
  });
});

test('ten thousand messages: few elements, smooth scrolling', async () => {
  await using({}, {}, async ({ page, go }) => {
    await go('#/calls/10000');
    const list = page.getByRole('listbox');
    const option = page.locator('.row').first();
    await option.waitFor();
    assert.ok(Number(await option.getAttribute('aria-setsize')) >= 10_000);
    const measured = await list.evaluate(async (node) => {
      const frames = [];
      let most = 0;
      let before = performance.now();
      const steps = 120;
      for (let step = 0; step <= steps; step += 1) {
        node.scrollTop = ((node.scrollHeight - node.clientHeight) * step) / steps;
        await new Promise((done) => requestAnimationFrame(done));
        const now = performance.now();
        frames.push(now - before);
        before = now;
        most = Math.max(most, node.querySelectorAll('[role=option]').length);
      }
      frames.sort((a, b) => a - b);
      return { most, all: document.querySelectorAll('*').length, median: frames[Math.floor(frames.length / 2)], end: node.querySelector('[role=option]:last-child')?.getAttribute('aria-posinset'), blank: node.querySelectorAll('[role=option]').length === 0 };
    });
    console.log(`ladder: ${measured.most} rows drawn at most, ${measured.all} elements in the page, median frame ${measured.median.toFixed(1)} ms`);
    assert.ok(measured.most <= 80, JSON.stringify(measured));
    assert.ok(measured.all < 2500, JSON.stringify(measured));
    // The bound is for a machine that also builds (74 ms were seen); the number of elements is what makes it fluent.
    assert.ok(measured.median < 250, JSON.stringify(measured));
    assert.ok(!measured.blank && Number(measured.end) >= 10_000, JSON.stringify(measured));
    // The keyboard walks from end to end, and the selected row is visible.
    await list.focus();
    await page.keyboard.press('End');
    const last = page.locator('[role=option][aria-selected=true]');
    await last.waitFor();
    assert.match(await last.textContent(), /200 OK/);
    await page.keyboard.press('PageUp');
    await page.keyboard.press('Home');
    assert.equal(await page.locator('[role=option][aria-selected=true]').getAttribute('aria-posinset'), '1');
    // Filter.
    await page.fill('#filter', 'BYE');
    await page.waitForFunction(() => document.querySelectorAll('[role=option]').length < 10);
  });
});

test('results of an earlier search do not take the focus', async () => {
  await using({}, {}, async ({ page, go }) => {
    // The browser tells the page of its new route late, and the first search is answered in between.
    await page.addInitScript(() => {
      addEventListener('hashchange', (event) => {
        if (event.isTrusted && location.hash.includes('number=')) {
          event.stopImmediatePropagation();
          window.change = () => dispatchEvent(new HashChangeEvent('hashchange'));
        }
      });
    });
    let release;
    const asked = new Promise((resolve) => (release = resolve));
    await page.route('**/api/v1/calls?*', async (route) => {
      if (!route.request().url().includes('number=603')) await asked;
      await route.continue();
    });
    await go('#/overview');
    await page.keyboard.press('/');
    await page.waitForFunction(() => document.activeElement?.id === 'f-number');
    await page.keyboard.type('603');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => window.change !== undefined);
    release();
    await page.waitForSelector('a.row');
    await page.evaluate(() => window.change());
    await page.waitForFunction(() => document.activeElement?.matches('a.row'));
    await page.waitForFunction(() => [...document.querySelectorAll('tbody tr')].every((row) => row.textContent.includes('603')));
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    assert.ok(await page.evaluate(() => document.activeElement?.matches('a.row')), 'the focus is on a result');
  });
});

test('keyboard from search to call to message', async () => {
  await using({}, {}, async ({ page, go }, mock) => {
    await go('#/overview');
    await page.keyboard.press('/');
    await page.waitForFunction(() => document.activeElement?.id === 'f-number');
    await page.keyboard.type('603');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.activeElement?.matches('a.row'));
    assert.match(page.url(), /#\/search\?number=603$/);
    assert.equal(mock.state.requests.findLast((one) => one.path === '/api/v1/calls').query.number, '603');
    await page.keyboard.press('ArrowDown');
    const link = await page.evaluate(() => document.activeElement.getAttribute('href'));
    await page.keyboard.press('Enter');
    await page.waitForSelector('[role=listbox]');
    assert.ok(page.url().includes(link), page.url());
    await page.locator('[role=listbox]').focus();
    for (let step = 0; step < 4; step += 1) await page.keyboard.press('ArrowDown');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.activeElement?.matches('section.panel'));
    await page.waitForSelector('.raw .line');
    assert.match(page.url(), /\?m=\d+$/);
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => document.activeElement?.matches('[role=listbox]'));
    await page.goBack();
    await page.waitForSelector('h1:text("Search")');
    assert.equal(await page.inputValue('#f-number'), '603');
    // Sequences of keys, and the switch that turns them off.
    await page.locator('h1').click();
    await page.keyboard.press('g');
    await page.keyboard.press('t');
    await page.waitForSelector('h1:text("Trunks")');
    await page.keyboard.press('?');
    await page.getByLabel('Single keys are shortcuts').uncheck();
    await page.keyboard.press('Escape');
    await page.locator('h1').click();
    await page.keyboard.press('g');
    await page.keyboard.press('d');
    assert.match(page.url(), /trunks/);
  });
});

test('every filter is in the URL and in the request; cursors turn pages', async () => {
  await using({}, {}, async ({ page, go }, mock) => {
    await go('#/search');
    const given = { number: '600', kind: 'any', words: 'Phone', call_id: 'x@y', address: '192.0.2.1', outcome: '200', trunk: 'pbx', min_duration: '1.5', max_duration: '90', min_mos: '2.5', mos_below: '3.6', codec: 'PCMA', protection: 'none', text: 'a b&c' };
    for (const [name, value] of Object.entries(given)) await page.fill(`#f-${name}`, value);
    await page.fill('#f-from', '2026-11-25T10:00:01');
    await page.fill('#f-to', '2026-11-25T11:30:00');
    await page.selectOption('#f-limit', '100');
    await page.getByRole('button', { name: 'Search' }).click();
    await page.waitForURL(/text=/);
    // The request follows the change of the URL.
    const asked = () => mock.state.requests.findLast((one) => one.path === '/api/v1/calls' && one.query.text);
    for (let wait = 0; wait < 250 && !asked(); wait += 1) await page.waitForTimeout(20);
    const { query } = asked();
    assert.deepEqual(query, { ...given, from: '2026-11-25T10:00:01Z', to: '2026-11-25T11:30:00Z', limit: '100' });
    await page.reload();
    await page.waitForSelector('#f-text');
    assert.equal(await page.inputValue('#f-text'), 'a b&c');
    assert.match(await page.inputValue('#f-from'), /^2026-11-25T10:00:01/);
    await go('#/search');
    const first = await page.locator('a.row').first().textContent();
    await page.getByRole('link', { name: 'Older' }).click();
    await page.waitForURL(/cursor=50/);
    await page.waitForFunction((text) => document.querySelector('a.row')?.textContent !== text, first);
    await page.getByRole('link', { name: 'Newest' }).click();
    await page.waitForFunction((text) => document.querySelector('a.row')?.textContent === text, first);
    await go('#/search?text=rare');
    await page.waitForSelector('.notice.warning');
    await go('#/search?words=damage');
    await page.waitForFunction(() => document.querySelector('.notice.warning')?.textContent.includes('cannot be read'));
  });
});

test('a message shows its edits and their rules, and its copy on the other leg', async () => {
  await using({}, {}, async ({ page, go }) => {
    await go('#/calls/7?m=2');
    await page.waitForSelector('.raw ins');
    const text = await page.locator('.raw').textContent();
    for (const part of ['Max-Forwards: 70', 'changed: the border', 'changed: topology hiding', 'added: rule add-identity', 'User-Agent: Phone 1.0', 'removed: rule drop-agent']) assert.ok(text.includes(part), part);
    assert.equal(await page.locator('.raw del').count(), 3);
    await page.getByRole('button', { name: /Changes/ }).click();
    assert.ok(!(await page.locator('.raw').textContent()).includes('Call-ID'));
    await page.getByRole('button', { name: 'Other leg' }).click();
    await page.waitForURL(/m=0$/);
    // It is pressed still; as a whole the received message is shown as it came.
    await page.waitForFunction(() => document.querySelector('.raw')?.textContent.includes('X-Added'));
    const received = await page.locator('.raw').textContent();
    for (const part of ['sent as this: one less at each hop', 'not sent: rule drop-identity', 'added when sent: rule add']) assert.ok(received.includes(part), part);
    await page.getByRole('button', { name: /Changes/ }).click();
    const whole = await page.locator('.raw').textContent();
    assert.ok(whole.includes('changed: one less at each hop') && whole.includes('Call-ID') && !whole.includes('X-Added'), whole);
    await page.locator('[role=listbox]').focus();
    await page.keyboard.press('c');
    await page.waitForURL(/m=2$/);
    // The retransmission is marked, and the ladder has both legs around the border.
    assert.equal(await page.locator('.words em', { hasText: 'repeat' }).count(), 1);
    assert.deepEqual(await page.locator('.who b').allTextContents(), ['caller', 'border', 'callee']);
    assert.ok((await page.locator('main').textContent()).includes('to.user.startsWith'));
    // A click on the time axis selects the nearest message.
    await page.locator('.u-over').click({ position: { x: 5, y: 20 } });
    await page.waitForURL(/m=[01]$/);
  });
});

test('exports are saved as files', async () => {
  await using({ role: 'operator' }, {}, async ({ page, go }) => {
    await go('#/calls/7');
    for (const [name, file] of [['Export pcapng', 'call-7.pcapng'], ['Export text', 'call-7.txt']]) {
      const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name, exact: true }).click()]);
      assert.equal(download.suggestedFilename(), file);
    }
  });
});

test('operators change state, with the CSRF token', async () => {
  await using({ role: 'operator' }, {}, async ({ page, go }, mock) => {
    const confirm = (name) => page.getByRole('dialog').getByRole('button', { name }).click();
    await go('#/live');
    await page.getByRole('button', { name: /^Hang up/ }).first().click();
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click();
    assert.equal(mock.state.live.length, 14);
    await page.getByRole('button', { name: /^Hang up/ }).first().click();
    await confirm('Hang up');
    await page.waitForFunction(() => document.querySelectorAll('tbody tr').length === 13);
    await go('#/trunks');
    await page.getByRole('button', { name: 'Out of service pbx' }).click();
    await confirm('Out of service');
    await page.getByRole('button', { name: 'In service pbx' }).click();
    await page.getByRole('button', { name: 'Out of service pbx' }).waitFor();
    await go('#/registrations');
    await page.getByRole('button', { name: 'Delete 1003@example.com' }).click();
    await confirm('Delete');
    await page.waitForFunction(() => !document.querySelector('main').textContent.includes('1003@example.com'));
    await go('#/alarms');
    await page.getByRole('button', { name: 'Acknowledge trunk_down' }).click();
    await page.waitForFunction(() => document.querySelectorAll('main button').length > 0 && document.querySelector('main').textContent.match(/erika/g)?.length === 2);
    await go('#/system');
    await page.waitForFunction(() => document.querySelector('main').textContent.includes('branch.example'));
    await page.getByRole('button', { name: 'Remove 203.0.113.66' }).click();
    await confirm('Remove');
    await page.waitForFunction(() => document.querySelector('main').textContent.includes('No source or user is banned'));
    const changes = mock.state.requests.filter((one) => one.method !== 'GET');
    assert.equal(changes.length, 6);
    assert.ok(changes.every((one) => one.csrf === 'token-1'));
    assert.equal(await page.getByRole('link', { name: 'Audit log' }).count(), 0);
    assert.equal(await page.getByRole('button', { name: 'Drain' }).count(), 0);
  });
});

test('bans and targets that look alike are all listed', async () => {
  // Masked users with the same last digits.
  await using({ role: 'viewer', bans: ['user:*00', 'user:*00'] }, {}, async ({ page, go }, mock) => {
    mock.state.trunks[0].targets = Array(2).fill({ address: 'udp:198.51.100.20', up: true });
    await go('#/system');
    await page.waitForFunction(() => document.querySelector('main').textContent.match(/user:\*00/g)?.length === 2);
    await go('#/trunks');
    await page.waitForFunction(() => document.querySelector('tbody tr').textContent.match(/udp:198\.51\.100\.20/g)?.length === 2);
  });
});

test('a call is hung up by its Call-ID, which is named as such', async () => {
  await using({ role: 'operator' }, {}, async ({ page, go }, mock) => {
    const id = `c${RUNNING}@192.0.2.10`;
    mock.state.live[0].call_id = id;
    await go(`#/calls/${RUNNING}`);
    await page.getByRole('button', { name: 'Hang up' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Hang up' }).click();
    await page.waitForFunction(() => document.body.textContent.includes('Hang up: done'));
    assert.equal(mock.state.requests.findLast((one) => one.method === 'DELETE').path, `/api/v1/live/calls/call_id:${id}`);
    assert.equal(mock.state.live.length, 13);
  });
});

test('a viewer sees no action, and a refusal is shown', async () => {
  await using({ role: 'viewer' }, {}, async ({ page, go }) => {
    for (const path of PAGES.filter((path) => path !== 'audit')) {
      await go(`#/${path}`);
      const names = await page.locator('main button').allTextContents();
      const actions = names.filter((name) => /Hang up|Delete|service|Acknowledge|Export|Remove|Drain|Reload configuration|Set/.test(name));
      assert.deepEqual(actions, [], path);
      if (path === 'search') assert.equal(await page.locator('#f-text').count(), 0);
    }
    await go('#/audit');
    await page.waitForSelector('h1:text("Not found")');
  });
  await using({ failing: true }, { tolerate: /503/ }, async ({ page, go }) => {
    for (const path of ['overview', 'search', 'calls/7', 'live', 'trunks', 'alarms']) {
      await go(`#/${path}`);
      await page.waitForSelector('[role=alert]');
      assert.ok((await page.locator('[role=alert]').first().textContent()).includes('the border does not answer within 5 s'), path);
    }
  });
  await using({}, { tolerate: /400/ }, async ({ page, go }) => {
    await go('#/search');
    await page.waitForSelector('a.row');
    await go('#/search?address=nonsense');
    await page.waitForSelector('[role=alert]');
    assert.ok((await page.locator('[role=alert]').textContent()).includes('"nonsense" is not an IP address'));
    assert.equal(await page.locator('a.row').count(), 0, 'calls that fulfil other conditions');
  });
});

test('login, a wrong password, the end of a session, logout', async () => {
  await using({ login: true }, { tolerate: /401/ }, async ({ page, go }, mock) => {
    await go('#/trunks');
    await page.fill('[name=user]', 'erika');
    await page.fill('[name=password]', 'wrong');
    await page.keyboard.press('Enter');
    await page.waitForSelector('[role=alert]');
    assert.equal(await page.inputValue('[name=password]'), '');
    await page.fill('[name=password]', 'secret');
    await page.keyboard.press('Enter');
    await page.waitForSelector('h1:text("Trunks")');
    mock.state.expired = true;
    await page.getByRole('link', { name: 'Drops' }).click();
    await page.waitForSelector('h1:text("Log in")');
    assert.ok((await page.locator('main').textContent()).includes('session has ended'));
    await page.fill('[name=user]', 'erika');
    await page.fill('[name=password]', 'secret');
    await page.keyboard.press('Enter');
    await page.waitForSelector('h1:text("Drops")');
    await page.getByRole('button', { name: 'Log out' }).click();
    await page.waitForSelector('h1:text("Log in")');
  });
});

test('events of the server update the pages', async () => {
  await using({}, {}, async ({ page, go }, mock) => {
    await go('#/overview');
    await page.waitForSelector('text=live');
    const at = Math.floor(Date.now() / 1000) + 5;
    const now = { at, calls_active: 4242, calls_per_s: 1, registrations: 5, registrations_per_s: 0, rtp_packets_per_s: 1, mos: null, cpu: 0.5, memory_mib: 1, drops_per_s: 0, answered_ratio: null, store_lost: 37, store_failing: true };
    mock.push('overview', now);
    await page.waitForFunction(() => document.querySelector('.tiles')?.textContent.includes('4,242'));
    const lost = page.locator('.tiles div', { hasText: 'Not stored' });
    assert.match(await lost.textContent(), /37\s*store fails/);
    assert.equal(await lost.locator('dd.bad').count(), 1);
    await page.getByRole('button', { name: 'Pause' }).click();
    mock.push('overview', { ...now, at: at + 5, calls_active: 17 });
    await page.waitForTimeout(300);
    assert.ok((await page.locator('.tiles').textContent()).includes('4,242'));
    assert.equal(await page.locator('.nav .count').textContent(), '2 unacknowledged');
    const tile = (name) => page.locator('.tiles div', { hasText: name }).locator('dd').textContent();
    mock.state.alarms[0].acknowledged_by = 'erika';
    mock.push('alarm', mock.state.alarms[0]);
    await page.waitForFunction(() => document.querySelector('.nav .count')?.textContent === '1 unacknowledged');
    assert.deepEqual([await tile('Active alarms'), await tile('Unacknowledged')], ['2', '1']);
    for (const alarm of mock.state.alarms) alarm.cleared = '2026-11-25T20:00:00Z';
    mock.push('alarm', mock.state.alarms[0]);
    await page.waitForFunction(() => document.querySelector('.nav .count') === null);
    await go('#/live');
    mock.state.live = mock.state.live.slice(0, 3);
    mock.push('call', mock.state.live[0]);
    await page.waitForFunction(() => document.querySelectorAll('tbody tr').length === 3);
  });
});
