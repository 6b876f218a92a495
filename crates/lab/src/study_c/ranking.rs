//! Ranks of the protections by security, latency, jitter and loss, and recommendations.

use super::model::{NETWORKS, NOT_OF_STUDY, PROTECTIONS, StudyProtection, marked};
use super::pooled::Pooled;
use super::record::CellRecord;
use super::{CipherSpeed, cells_of};
use crate::statistics::Interval;
use serde::Serialize;

/// One protection in the ranking.
#[derive(Clone, Debug, Serialize)]
pub struct RankRow {
    /// Its name in records.
    pub name: &'static str,
    /// Its name on the page.
    pub label: &'static str,
    /// Whether the study has it.
    pub is_of_study: bool,
    /// The study's ranks: security, latency, jitter, loss; 0: none.
    pub study: [u8; 4],
    /// Our ranks among the VPNs; protections whose intervals overlap have the same rank. `null`: not measured.
    pub here: [Option<u8>; 4],
    /// The best and the worst rank that the intervals of the figure allow; that of security is not measured.
    pub rank_intervals: [Option<[u8; 2]>; 4],
    /// Latency, jitter and loss, mean over the networks.
    pub means: [Option<f64>; 3],
    /// Their 95 % intervals, mean over the networks.
    pub intervals: [Option<[f64; 2]>; 3],
    /// Reason of the rank of security.
    pub reason: &'static str,
    /// Whether it is advised for new use.
    pub is_acceptable: bool,
    /// Speed of its cipher in memory, megabytes per second.
    pub mb_per_s: Option<f64>,
}

impl RankRow {
    /// Its name in tables, with a mark if the study does not have it.
    pub fn marked(&self) -> String {
        marked(self.label, self.is_of_study)
    }

    /// The interval of a rank, for a study row.
    pub fn rank_interval(&self, index: usize) -> Option<Interval> {
        let [best, worst] = self.rank_intervals[index]?;
        let (samples, of, method) = match index {
            0 => (0, "assessments", "by key and block length"),
            _ => (
                NETWORKS.len() as u64,
                "networks",
                "ranks that the intervals of the figure allow",
            ),
        };
        Some(Interval {
            low: Some(f64::from(best)),
            high: Some(f64::from(worst)),
            samples,
            of: of.to_owned(),
            method: method.to_owned(),
        })
    }
}

/// A recommendation for a need.
#[derive(Clone, Debug, Serialize)]
pub struct Recommendation {
    /// The need.
    pub need: &'static str,
    /// The protection; empty if none was measured, or if those advised for new use do not differ.
    pub protection: &'static str,
    /// The reason.
    pub reason: String,
}

impl Recommendation {
    fn none(need: &'static str, reason: String) -> Recommendation {
        Recommendation {
            need,
            protection: "",
            reason,
        }
    }

    /// The protection in words.
    pub fn named(&self) -> &'static str {
        match self.protection {
            "" => "no recommendation",
            name => name,
        }
    }
}

const MEASURED: [&str; 3] = ["latency", "jitter", "loss"];

/// Ranks all protections of media.
pub fn rank(cells: &[CellRecord], speeds: &[CipherSpeed]) -> Vec<RankRow> {
    rank_among(cells, speeds, |_| true)
}

/// Ranks those that the study has, among each other: beside the study's ranks.
pub fn rank_of_study(cells: &[CellRecord], speeds: &[CipherSpeed]) -> Vec<RankRow> {
    rank_among(cells, speeds, StudyProtection::is_of_study)
}

fn rank_among(
    cells: &[CellRecord],
    speeds: &[CipherSpeed],
    is_ranked: fn(&StudyProtection) -> bool,
) -> Vec<RankRow> {
    let mut rows: Vec<RankRow> = PROTECTIONS
        .iter()
        .filter(|protection| protection.security > 0 && is_ranked(protection))
        .map(|protection| {
            let pooled =
                NETWORKS.map(|network| Pooled::of(&cells_of(cells, network.name, protection.name)));
            let mut means = [None; 3];
            let mut intervals = [None; 3];
            for (index, name) in MEASURED.iter().enumerate() {
                let found: Vec<_> = pooled.iter().filter_map(|p| p.figure(name)).collect();
                // A mean over fewer networks is no mean of the same.
                if found.len() < NETWORKS.len() {
                    continue;
                }
                let n = found.len() as f64;
                means[index] = Some(found.iter().map(|(value, _)| value).sum::<f64>() / n);
                // Half widths of independent figures add in quadrature.
                let half = |of: fn(&crate::statistics::Interval) -> Option<f64>| {
                    let halves = found
                        .iter()
                        .map(|(value, interval)| Some((of(interval)? - value).powi(2)));
                    let squares: Option<f64> = halves.sum();
                    squares.map(|squares| squares.sqrt() / n)
                };
                if let (Some(mean), Some(low), Some(high)) =
                    (means[index], half(|i| i.low), half(|i| i.high))
                {
                    intervals[index] = Some([f64::max(mean - low, 0.0), mean + high]);
                }
            }
            let speed = speeds
                .iter()
                .find(|speed| speed.protection == protection.name);
            RankRow {
                name: protection.name,
                label: protection.label,
                is_of_study: protection.is_of_study(),
                study: protection.study_ranks,
                here: [Some(protection.security), None, None, None],
                rank_intervals: [Some([protection.security; 2]), None, None, None],
                means,
                intervals,
                reason: protection.reason,
                is_acceptable: protection.is_acceptable(),
                mb_per_s: speed.and_then(|speed| speed.mb_per_s),
            }
        })
        .collect();
    for figure in 0..MEASURED.len() {
        let mut order: Vec<usize> = (0..rows.len())
            .filter(|row| rows[*row].means[figure].is_some())
            .collect();
        let value = |rows: &[RankRow], row: usize| rows[row].means[figure].unwrap_or(f64::MAX);
        order.sort_by(|a, b| value(&rows, *a).total_cmp(&value(&rows, *b)));
        let mut best: Option<(usize, u8)> = None;
        for (place, row) in order.into_iter().enumerate() {
            // The first protection of a group stands for it, so that overlaps do not join all of them in a chain.
            let rank = match best {
                Some((first, rank)) if overlap(&rows, first, row, figure) => rank,
                _ => {
                    let rank = u8::try_from(place + 1).unwrap_or(u8::MAX);
                    best = Some((row, rank));
                    rank
                }
            };
            rows[row].here[figure + 1] = Some(rank);
        }
        let ranked: Vec<usize> = (0..rows.len())
            .filter(|row| rows[*row].means[figure].is_some())
            .collect();
        for row in &ranked {
            let others = || ranked.iter().filter(|other| *other != row);
            let apart = others().filter(|other| !overlap(&rows, *row, **other, figure));
            let (better, worse): (Vec<usize>, Vec<usize>) =
                apart.partition(|other| value(&rows, **other) < value(&rows, *row));
            let rank = |places: usize| u8::try_from(places).unwrap_or(u8::MAX);
            rows[*row].rank_intervals[figure + 1] =
                Some([rank(better.len() + 1), rank(ranked.len() - worse.len())]);
        }
    }
    rows
}

fn overlap(rows: &[RankRow], a: usize, b: usize, figure: usize) -> bool {
    match (rows[a].intervals[figure], rows[b].intervals[figure]) {
        (Some(a), Some(b)) => a[0] <= b[1] && b[0] <= a[1],
        // Without an interval no difference is shown.
        _ => true,
    }
}

/// Recommends a protection for each need.
pub fn recommend(rows: &[RankRow]) -> Vec<Recommendation> {
    let needs = [
        ("confidentiality", 0),
        ("low latency", 1),
        ("low jitter", 2),
        ("low loss", 3),
    ];
    needs
        .map(|(need, index)| recommendation(rows, need, index))
        .to_vec()
}

fn recommendation(rows: &[RankRow], need: &'static str, index: usize) -> Recommendation {
    let measured: Vec<&RankRow> = rows
        .iter()
        .filter(|row| row.is_acceptable && row.here.iter().all(Option::is_some))
        .collect();
    let rank = |row: &RankRow, index: usize| row.here[index].unwrap_or(u8::MAX);
    let labels = |rows: &[&RankRow]| {
        let labels: Vec<&str> = rows.iter().map(|row| row.label).collect();
        labels.join(", ")
    };
    let Some(best) = measured.iter().map(|row| rank(row, index)).min() else {
        let reason = "no protection that is advised for new use was measured in all networks";
        return Recommendation::none(need, reason.to_owned());
    };
    let ties: Vec<&RankRow> = measured
        .iter()
        .copied()
        .filter(|row| rank(row, index) == best)
        .collect();
    if ties.len() > 1 && ties.len() == measured.len() {
        let reason = format!(
            "{} have the same rank: their intervals overlap, so that {need} does not decide",
            labels(&ties)
        );
        return Recommendation::none(need, reason);
    }
    // Among equals the better security, then the lower loss and latency.
    let key = |row: &&RankRow| (rank(row, 0), rank(row, 3), rank(row, 1));
    let Some(row) = ties.iter().copied().min_by_key(key) else {
        return Recommendation::none(need, "none was measured".to_owned());
    };
    let others: Vec<&RankRow> = ties
        .into_iter()
        .filter(|tie| tie.name != row.name)
        .collect();
    let because = match (others.is_empty(), measured.len()) {
        (true, 1) => "the only one advised for new use that was measured".to_owned(),
        (true, _) => format!("rank {best} of {need} among those advised for new use"),
        (false, _) => {
            let next = others.iter().copied().min_by_key(key);
            let figures = [(0, "security"), (3, "loss"), (1, "latency")];
            let decisive = figures
                .into_iter()
                .find(|(index, _)| next.is_some_and(|next| rank(row, *index) < rank(next, *index)));
            let by = match decisive {
                Some((_, figure)) => format!("with the better rank of {figure}"),
                None => "the first of them in the list".to_owned(),
            };
            format!("rank {best} of {need} as {}, {by}", labels(&others))
        }
    };
    Recommendation {
        need,
        protection: row.label,
        reason: format!("{because} ({})", row.reason),
    }
}

/// The ranking for the terminal.
pub fn text(rows: &[RankRow], recommendations: &[Recommendation]) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let mut cells = vec![row.marked()];
            for (here, study) in row.here.iter().zip(row.study) {
                let here = here.map_or("-".to_owned(), |rank| rank.to_string());
                cells.push(match study {
                    0 => here,
                    study => format!("{here} ({study})"),
                });
            }
            let speed = row.mb_per_s.map_or("-".to_owned(), crate::report::plain);
            cells.push(speed);
            cells
        })
        .collect();
    let mut text =
        format!("ranks, 1 is best (study's in parentheses; {NOT_OF_STUDY} not of the study):\n");
    text.push_str(&crate::output::columns(
        &[
            "protection",
            "security",
            "latency",
            "jitter",
            "loss",
            "MB/s",
        ],
        &cells,
    ));
    for advice in recommendations {
        let protection = advice.named();
        text.push_str(&format!(
            "for {}: {protection}: {}\n",
            advice.need, advice.reason
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study_c::record::CellFigure;

    fn cell(
        network: &'static str,
        protection: &'static str,
        latency: f64,
        lost: u64,
    ) -> CellRecord {
        CellRecord {
            codec: "g723",
            network,
            protection,
            sent: [10_000, 10_000],
            arrived: [10_000 - lost, 10_000],
            loss_percent: Some(lost as f64 / 200.0),
            latency_ms: CellFigure {
                value: Some(latency),
                blocks: vec![vec![latency - 0.01, latency, latency + 0.01]],
            },
            jitter_ms: CellFigure {
                value: Some(1.0),
                blocks: vec![vec![0.5, 1.0, 1.5]],
            },
            ..CellRecord::default()
        }
    }

    #[test]
    fn ranks_have_ties_where_intervals_overlap() {
        let mut cells = Vec::new();
        for network in NETWORKS {
            cells.push(cell(network.name, "aes-256", 20.0, 500));
            cells.push(cell(network.name, "des", 10.0, 10));
            cells.push(cell(network.name, "rc2", 10.005, 12));
            // One network only: not ranked.
        }
        cells.push(cell("wan-38", "blowfish", 1.0, 0));
        let rows = rank(&cells, &[]);
        let of = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
        assert_eq!(of("des").here, [Some(6), Some(1), Some(1), Some(1)]);
        assert_eq!(of("rc2").here, [Some(5), Some(1), Some(1), Some(1)]);
        assert_eq!(of("aes-256").here, [Some(1), Some(3), Some(1), Some(3)]);
        assert_eq!(of("blowfish").here[1], None);
        // The best rank of AES-256 is that behind the two others; they may be first or second.
        assert_eq!(of("aes-256").rank_intervals[1], Some([3, 3]));
        assert_eq!(of("des").rank_intervals[1], Some([1, 2]));
        assert_eq!(of("des").rank_intervals[2], Some([1, 3]));
        let ends = of("des").rank_interval(2).unwrap();
        assert_eq!(
            (ends.low, ends.high, ends.samples),
            (Some(1.0), Some(3.0), 4)
        );
        assert_eq!(of("des").rank_interval(0).unwrap().high, Some(6.0));
        assert_eq!(of("blowfish").rank_interval(1), None);
        let advice = recommend(&rows);
        // DES is faster and not advised.
        assert!(advice.iter().all(|advice| advice.protection == "AES-256"));
        assert!(recommend(&rank(&[], &[]))[0].protection.is_empty());
    }

    #[test]
    fn ranks_beside_those_of_the_study_are_among_its_protections() {
        let mut cells = Vec::new();
        for network in NETWORKS {
            cells.push(cell(network.name, "srtp", 5.0, 0));
            cells.push(cell(network.name, "des", 10.0, 10));
            cells.push(cell(network.name, "aes-256", 20.0, 500));
        }
        let all = rank(&cells, &[]);
        let of = |rows: &[RankRow], name: &str| {
            let row = rows.iter().find(|row| row.name == name);
            row.map(|row| row.here)
        };
        assert_eq!(all.len(), 11);
        assert_eq!(of(&all, "des").unwrap()[1], Some(2));
        assert_eq!(
            of(&all, "srtp").unwrap(),
            [Some(2), Some(1), Some(1), Some(1)]
        );
        let study = rank_of_study(&cells, &[]);
        assert_eq!(study.len(), 6);
        assert_eq!(of(&study, "des").unwrap()[1], Some(1));
        assert_eq!(of(&study, "srtp"), None);
        let text = text(&all, &[]);
        assert!(text.contains("SRTP *") && !text.contains("DES *"), "{text}");
    }

    #[test]
    fn equal_ranks_are_no_recommendation() {
        let mut cells = Vec::new();
        for network in NETWORKS {
            cells.push(cell(network.name, "aes-128", 10.0, 500));
            cells.push(cell(network.name, "aes-256", 10.005, 10));
            cells.push(cell(network.name, "wireguard", 10.002, 12));
        }
        let advice = recommend(&rank(&cells, &[]));
        let of = |need: &str| advice.iter().find(|advice| advice.need == need).unwrap();
        assert_eq!(of("low latency").protection, "");
        assert_eq!(of("low latency").named(), "no recommendation");
        assert!(
            of("low latency")
                .reason
                .contains("AES-128, AES-256, WireGuard have the same rank")
        );
        assert_eq!(of("confidentiality").protection, "AES-256");
        // Both are equal in security, loss and latency.
        let loss = of("low loss");
        assert_eq!(loss.protection, "AES-256");
        let reason = "as WireGuard, the first of them in the list";
        assert!(loss.reason.contains(reason), "{loss:?}");
    }

    #[test]
    fn reason_among_equals_names_the_figure_that_differs() {
        let mut cells = Vec::new();
        for network in NETWORKS {
            cells.push(cell(network.name, "aes-128", 10.0, 10));
            cells.push(cell(network.name, "aes-256", 90.0, 12));
            cells.push(cell(network.name, "wireguard", 10.002, 900));
        }
        let advice = recommend(&rank(&cells, &[]));
        let of = |need: &str| advice.iter().find(|advice| advice.need == need).unwrap();
        for (need, protection, reason) in [
            (
                "confidentiality",
                "AES-256",
                "as WireGuard, with the better rank of loss",
            ),
            (
                "low latency",
                "WireGuard",
                "as AES-128, with the better rank of security",
            ),
            (
                "low loss",
                "AES-256",
                "as AES-128, with the better rank of security",
            ),
        ] {
            let of = of(need);
            assert_eq!(of.protection, protection, "{of:?}");
            assert!(of.reason.contains(reason), "{of:?}");
        }
    }
}
