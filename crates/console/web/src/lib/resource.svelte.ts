import { ApiError } from './api';

/** Data of a request with its state. A new load ends the one before. */
export class Resource<T> {
  data = $state.raw<T | null>(null);
  error = $state.raw<ApiError | null>(null);
  loading = $state(false);
  #abort: AbortController | null = null;

  /** Loads; data of an earlier load stays until the new one is there. */
  async load(fetcher: (signal: AbortSignal) => Promise<T>): Promise<boolean> {
    this.#abort?.abort();
    const abort = new AbortController();
    this.#abort = abort;
    this.loading = true;
    try {
      const data = await fetcher(abort.signal);
      if (abort.signal.aborted) return false;
      this.data = data;
      this.error = null;
      return true;
    } catch (error) {
      if (abort.signal.aborted) return false;
      this.error = asApiError(error);
      return false;
    } finally {
      if (this.#abort === abort) this.loading = false;
    }
  }

  stop(): void {
    this.#abort?.abort();
  }
}

export function asApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  return new ApiError(0, 'page', error instanceof Error ? error.message : String(error));
}

/** Calls `task` now and every `ms` while the page is visible; returns the end of it. */
export function poll(ms: number, task: () => void): () => void {
  task();
  const timer = setInterval(() => {
    if (document.visibilityState === 'visible') task();
  }, ms);
  return () => clearInterval(timer);
}
