//! The last step of a release, where LLVM's BOLT is installed (Debian: `bolt-15`): functions and blocks of the finished
//! program are reordered by execution counts, so that a call fetches fewer pages of code. The counts come from the
//! training work of `guided.rs`. Results of the program do not change, and counts of an older build cost speed only.

use crate::process::check;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Functions that are moved, by their symbol names: compiled Rust code and the allocator. Ciphers in
/// assembler stay in place.
const FUNCTIONS: &str = "-funcs=_ZN.*,_R.*,_rjem_.*";
/// Linker option that keeps relocations, which BOLT needs.
pub const LINKED: &str = "-Clink-arg=-Wl,--emit-relocs";
/// LLVM releases whose tools are searched for, newest first, after tools without a number.
const RELEASES: core::ops::RangeInclusive<u32> = 14..=29;

/// The tools, of one release of LLVM.
#[derive(Clone, Debug)]
pub struct Tools {
    bolt: PathBuf,
    merge: PathBuf,
}

impl Tools {
    /// The tools on the PATH, if there are any.
    pub fn find() -> Option<Tools> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let numbers = RELEASES.rev().map(|number| format!("-{number}"));
        let endings = core::iter::once(String::new()).chain(numbers);
        endings
            .flat_map(|ending| {
                folders.iter().filter_map(move |folder| {
                    // By its real path: it finds its instrumentation library relative to it.
                    let bolt = folder.join(format!("llvm-bolt{ending}")).canonicalize();
                    let merge = folder.join(format!("merge-fdata{ending}")).canonicalize();
                    Some(Tools {
                        bolt: bolt.ok()?,
                        merge: merge.ok()?,
                    })
                })
            })
            .next()
    }

    /// Writes an instrumented program; each of its processes writes a profile to this name with its process number.
    ///
    /// # Errors
    /// The output of the tool.
    pub fn count(&self, program: &Path, counting: &Path, counts: &Path) -> Result<(), String> {
        let bare = counting.with_extension("bare");
        without_debug(program, &bare)?;
        let mut file = OsString::from("-instrumentation-file=");
        file.push(counts);
        let done = quietly(
            Command::new(&self.bolt)
                .arg(&bare)
                .args(["-instrument", "-instrumentation-file-append-pid", FUNCTIONS])
                .arg(file)
                .arg("-o")
                .arg(counting),
        );
        let _ = std::fs::remove_file(bare);
        done
    }

    /// Merges all profiles of this folder.
    ///
    /// # Errors
    /// There are no profiles, or the output of the tool.
    pub fn merge(&self, counts: &Path, merged: &Path) -> Result<(), String> {
        let cannot = |error: std::io::Error| format!("{}: {error}", counts.display());
        let mut files = Vec::new();
        for entry in std::fs::read_dir(counts).map_err(cannot)? {
            files.push(entry.map_err(cannot)?.path());
        }
        if files.is_empty() {
            return Err("the instrumented program wrote no counts".to_owned());
        }
        quietly(Command::new(&self.merge).args(files).arg("-o").arg(merged))
    }

    /// Writes the program with its code in the order of the counts.
    ///
    /// # Errors
    /// The output of the tool.
    pub fn arrange(&self, program: &Path, counts: &Path, arranged: &Path) -> Result<(), String> {
        if let Some(folder) = arranged.parent() {
            std::fs::create_dir_all(folder)
                .map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let bare = arranged.with_extension("bare");
        without_debug(program, &bare)?;
        let mut data = OsString::from("-data=");
        data.push(counts);
        let done = quietly(
            Command::new(&self.bolt)
                .arg(&bare)
                .arg(data)
                .args([
                    FUNCTIONS,
                    "-reorder-blocks=ext-tsp",
                    "-reorder-functions=hfsort+",
                    "-split-functions",
                    "-split-all-cold",
                ])
                .arg("-o")
                .arg(arranged),
        );
        let _ = std::fs::remove_file(bare);
        done
    }
}

/// Line numbers would be wrong in a program whose code was moved; function names stay.
fn without_debug(program: &Path, bare: &Path) -> Result<(), String> {
    check(
        Command::new("strip")
            .arg("-g")
            .arg("-o")
            .arg(bare)
            .arg(program),
    )
}

/// The tools print a lot; their output is shown when they fail.
fn quietly(command: &mut Command) -> Result<(), String> {
    let shown = command.get_program().to_os_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", Path::new(&shown).display()))?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = told.lines().rev().take(3).collect();
    Err(format!(
        "{}: {}: {}",
        Path::new(&shown).display(),
        output.status,
        last.join("; ")
    ))
}
