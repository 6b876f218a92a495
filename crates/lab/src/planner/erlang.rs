//! Erlang's formulas: blocking of a group of lines, waiting at a group of servers.

/// Most offered traffic that is computed, erlangs: the recursion takes one step for each line.
pub const MOST_ERLANGS: f64 = 5e7;

/// Erlang B: the probability that a call finds all `lines` busy, with `erlangs` of offered traffic (Poisson arrivals,
/// blocked calls are lost).
pub fn erlang_b(lines: u64, erlangs: f64) -> f64 {
    if erlangs <= 0.0 {
        return if lines == 0 { 1.0 } else { 0.0 };
    }
    // B(0) = 1, B(n) = A B(n-1) / (n + A B(n-1)): stable, unlike the quotient of factorials.
    (1..=lines).fold(1.0, |blocking, n| next(blocking, n, erlangs))
}

fn next(blocking: f64, line: u64, erlangs: f64) -> f64 {
    let product = erlangs * blocking;
    product / (line as f64 + product)
}

/// The fewest lines whose blocking is at most `blocking` (above 0, below 1) with `erlangs` of offered traffic, which is
/// at most [`MOST_ERLANGS`].
pub fn lines_for(erlangs: f64, blocking: f64) -> u64 {
    let erlangs = erlangs.clamp(0.0, MOST_ERLANGS);
    let (mut lines, mut now) = (0, 1.0);
    while now > blocking && erlangs > 0.0 {
        lines += 1;
        now = next(now, lines, erlangs);
    }
    lines
}

/// Erlang C: the probability that a request has to wait for one of `servers`, with `erlangs` of offered traffic
/// (Poisson arrivals, exponential service times); 1 if the servers are overloaded.
pub fn erlang_c(servers: u64, erlangs: f64) -> f64 {
    let load = erlangs / servers as f64;
    if servers == 0 || load >= 1.0 {
        return 1.0;
    }
    let blocking = erlang_b(servers, erlangs);
    blocking / (1.0 - load * (1.0 - blocking))
}

/// Mean waiting time at `servers` with `erlangs` of offered traffic and this mean service time, in its unit; infinite
/// if they are overloaded.
pub fn mean_wait(servers: u64, erlangs: f64, service: f64) -> f64 {
    let free = servers as f64 - erlangs;
    match free > 0.0 {
        true => erlang_c(servers, erlangs) * service / free,
        false => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, wanted: f64, tolerance: f64) {
        assert!((found - wanted).abs() <= tolerance, "{found} {wanted}");
    }

    #[test]
    fn blocking_has_the_values_computed_by_hand() {
        // One line: A / (1 + A).
        near(erlang_b(1, 1.0), 0.5, 1e-12);
        // Two lines, 2 erlangs: (4/2) / (1 + 2 + 4/2) = 0.4.
        near(erlang_b(2, 2.0), 0.4, 1e-12);
        // Three lines, 1 erlang: (1/6) / (1 + 1 + 1/2 + 1/6) = 0.0625.
        near(erlang_b(3, 1.0), 0.0625, 1e-12);
        // Five lines, 3 erlangs: (243/120) / (1 + 3 + 4.5 + 4.5 + 3.375 + 2.025) = 2.025 / 18.4.
        near(erlang_b(5, 3.0), 2.025 / 18.4, 1e-12);
        near(erlang_b(0, 3.0), 1.0, 0.0);
        near(erlang_b(4, 0.0), 0.0, 0.0);
    }

    #[test]
    fn lines_are_the_fewest_within_the_blocking() {
        // Tables of Erlang B: 10 erlangs at 1 % need 18 lines, 100 erlangs at 1 % need 117.
        assert_eq!(lines_for(10.0, 0.01), 18);
        assert_eq!(lines_for(100.0, 0.01), 117);
        for erlangs in [0.1, 1.0, 7.5, 333.0, 20_000.0] {
            let lines = lines_for(erlangs, 0.001);
            assert!(erlang_b(lines, erlangs) <= 0.001);
            assert!(erlang_b(lines - 1, erlangs) > 0.001, "{erlangs}");
        }
        assert_eq!(lines_for(0.0, 0.01), 0);
    }

    #[test]
    fn waiting_has_the_values_computed_by_hand() {
        // M/M/1: the probability is the load, the mean wait is s rho / (1 - rho).
        near(erlang_c(1, 0.7), 0.7, 1e-12);
        near(mean_wait(1, 0.7, 10.0), 10.0 * 0.7 / 0.3, 1e-9);
        // M/M/2 with 1 erlang: B = 0.2, C = 0.2 / (1 - 0.5 * 0.8) = 1/3.
        near(erlang_c(2, 1.0), 1.0 / 3.0, 1e-12);
        near(mean_wait(2, 1.0, 6.0), 2.0, 1e-12);
        near(erlang_c(2, 2.0), 1.0, 0.0);
        assert!(mean_wait(2, 2.5, 1.0).is_infinite() && mean_wait(0, 0.5, 1.0).is_infinite());
    }
}
