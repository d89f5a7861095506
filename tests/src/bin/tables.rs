//! Program `tables` that writes the tables of the documents, or compares them with the current output of
//! their commands.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use fedspan_tests::tables::date::today;
use fedspan_tests::tables::page::{Class, Slot, slots, with};
use fedspan_tests::tables::programs::{Programs, Times, is_known};
use fedspan_tests::tables::{diff, own, text, unmarked};

const USAGE: &str = "usage: tests/tables [--all | --measured] [--check | --list] [PAGE...]
       tests/tables --print NAME

Writes the tables of the documents: the text between <!-- table: COMMAND --> and <!-- end of table --> is the output of
COMMAND. Without pages: all pages.

  --all        also tables that take minutes (marked `nightly`)
  --measured   only tables marked `measured`, which hold times and memory of a machine and the date of the measurement; lists
               those that must be entered by hand
  --check      writes nothing; prints page, line, command and differences of every table that is not the output of its command
  --list       runs nothing; prints every table with its class, the seconds it last took here, and its command
  --print NAME prints a table that no other command prints

Ctrl-C stops it; every page is then either old or new.
exit: 0 done, or no differences · 1 a table differs, or a command failed · 2 wrong arguments";

/// Parsed arguments.
#[derive(Debug, Default)]
struct Options {
    all: bool,
    measured: bool,
    check: bool,
    list: bool,
    pages: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut options = Options::default();
    match words.as_slice() {
        ["-h" | "--help"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        ["--print", name] => return print(name),
        words => {
            for word in words {
                match *word {
                    "--all" => options.all = true,
                    "--measured" => options.measured = true,
                    "--check" => options.check = true,
                    "--list" => options.list = true,
                    word if word.starts_with('-') => return usage(&format!("unknown argument {word:?}")),
                    page => options.pages.push(PathBuf::from(page)),
                }
            }
        }
    }
    if options.measured && (options.all || options.check) {
        return usage("--measured excludes --all and --check: measured tables are never compared");
    }
    match work(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tables: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage(error: &str) -> ExitCode {
    eprintln!("tables: {error}\n{USAGE}");
    ExitCode::from(2)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

fn programs() -> Result<Programs, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let directory = program.parent().unwrap_or(Path::new("."));
    Ok(Programs::new(directory, &root().join("target/tables/work"), own::print))
}

/// Prints a table that no other command prints.
fn print(name: &str) -> ExitCode {
    match programs().and_then(|mut programs| own::print(name, &mut programs)) {
        Ok(table) => {
            print!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tables: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes or compares the selected tables; returns false if a table differs or failed.
fn work(options: &Options) -> Result<bool, String> {
    let pages = if options.pages.is_empty() { documents(&root())? } else { options.pages.clone() };
    let mut programs = programs()?;
    let mut times = Times::read(&root().join("target/tables/times.json"));
    let (mut made, mut wrong) = (0, 0);
    for page in &pages {
        let shown = page.strip_prefix(root()).unwrap_or(page).display().to_string();
        let read = || std::fs::read_to_string(page).map_err(|error| format!("{shown}: {error}"));
        let mut whole = read()?;
        let count = slots(&whole).map_err(|error| format!("{shown}: {error}"))?.len();
        for line in unmarked(&whole) {
            eprintln!("{shown}:{line}: a table of figures without a mark that names its command");
            wrong += 1;
        }
        for index in 0..count {
            // The page is parsed again, because writing a table moves the tables after it.
            let slot = slots(&whole)?.swap_remove(index);
            let (place, commands) = (format!("{shown}:{}", slot.line), slot.commands());
            if options.list {
                list(&place, &slot, times.get(&commands));
                continue;
            }
            if !is_asked_for(&slot.class, options) {
                continue;
            }
            if options.measured && !slot.lines.iter().all(|line| is_known(&line.command)) {
                println!("{place}: entered by hand: {commands}");
                continue;
            }
            eprintln!("{place}: {}", short(&commands));
            let began = Instant::now();
            made += 1;
            match text(&slot, &mut programs) {
                Err(error) => {
                    eprintln!("{place}: FAILED: {error}");
                    wrong += 1;
                }
                Ok(table) => {
                    times.note(&commands, began);
                    let current = &whole[slot.place.clone()];
                    if options.check && *current != table {
                        wrong += 1;
                        println!("{place}: differs from what its command prints now: {commands}");
                        print!("{}", diff(current, &table));
                    } else if !options.check {
                        whole = with(&whole, &slot, &table, &today());
                        write(page, &whole).map_err(|error| format!("{shown}: {error}"))?;
                    }
                }
            }
        }
    }
    if !options.list {
        eprintln!("{made} tables, {wrong} differ or failed");
    }
    Ok(wrong == 0)
}

/// Returns the beginning of the commands, for a progress line.
fn short(commands: &str) -> String {
    const LENGTH: usize = 100;
    match commands.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{} ...", &commands[..end]),
        None => commands.to_owned(),
    }
}

fn is_asked_for(class: &Class, options: &Options) -> bool {
    match class {
        Class::Quick => !options.measured,
        Class::Nightly => options.all,
        Class::Measured(_) => options.measured,
    }
}

fn list(place: &str, slot: &Slot, seconds: Option<f64>) {
    let seconds = seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1}"));
    println!("{place:<36} {:<8} {seconds:>8} s  {}", slot.class.word(), slot.commands());
}

/// Writes a page atomically.
fn write(page: &Path, text: &str) -> std::io::Result<()> {
    let part = page.with_extension("md.part");
    std::fs::write(&part, text)?;
    std::fs::rename(&part, page)
}

/// Finds all pages below a directory, sorted. Skips build output and hidden directories.
fn documents(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut entries =
        std::fs::read_dir(directory).map_err(wrong)?.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut found = Vec::new();
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            found.extend(documents(&path)?);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
    Ok(found)
}
