import type { ActionReturn } from 'svelte/action';

/** A wide table that scrolls sideways takes the focus, so that the keyboard scrolls it; one that fits is no stop. */
export function scrollable(node: HTMLElement, name: string): ActionReturn {
  const update = () => {
    if (node.scrollWidth > node.clientWidth) {
      node.tabIndex = 0;
      node.setAttribute('role', 'region');
      node.setAttribute('aria-label', name);
    } else {
      for (const attribute of ['tabindex', 'role', 'aria-label']) node.removeAttribute(attribute);
    }
  };
  const sizes = new ResizeObserver(update);
  // The table may come later than its place, or be another one.
  const watch = () => {
    sizes.disconnect();
    for (const element of [node, ...node.children]) sizes.observe(element);
    update();
  };
  const children = new MutationObserver(watch);
  children.observe(node, { childList: true });
  watch();
  return {
    destroy: () => {
      sizes.disconnect();
      children.disconnect();
    },
  };
}

/** Arrow keys, Home and End move the focus between the row links (`a.row`) of a table. */
export function rowKeys(node: HTMLElement): ActionReturn {
  function keydown(event: KeyboardEvent) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const links = [...node.querySelectorAll<HTMLAnchorElement>('a.row')];
    const at = links.indexOf(document.activeElement as HTMLAnchorElement);
    if (at < 0) return;
    const target = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    links[Math.max(0, Math.min(links.length - 1, target))]?.focus();
  }
  node.addEventListener('keydown', keydown);
  return { destroy: () => node.removeEventListener('keydown', keydown) };
}
