//! Program `tables` that writes the tables of the documents, or compares them with the current output of
//! their commands.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use fedspan_tests::tables::date::today;
use fedspan_tests::tables::page::{Class, Slot, replace_table, slots};
use fedspan_tests::tables::programs::{Programs, Times, is_known};
use fedspan_tests::tables::{diff, own, produce_table, unmarked};

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
        ["--print", name] => return print_table(name),
        words => {
            for word in words {
                match *word {
                    "--all" => options.all = true,
                    "--measured" => options.measured = true,
                    "--check" => options.check = true,
                    "--list" => options.list = true,
                    word if word.starts_with('-') => {
                        return print_usage(&format!("unknown argument {word:?}"));
                    }
                    page => options.pages.push(PathBuf::from(page)),
                }
            }
        }
    }
    if options.measured && (options.all || options.check) {
        return print_usage("--measured excludes --all and --check: measured tables are never compared");
    }
    match process_pages(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tables: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_usage(error: &str) -> ExitCode {
    eprintln!("tables: {error}\n{USAGE}");
    ExitCode::from(2)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

fn create_programs() -> Result<Programs, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let directory = program.parent().unwrap_or(Path::new("."));
    Ok(Programs::new(directory, &root().join("target/tables/work"), own::print))
}

/// Prints a table that no other command prints.
fn print_table(name: &str) -> ExitCode {
    match create_programs().and_then(|mut programs| own::print(name, &mut programs)) {
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
fn process_pages(options: &Options) -> Result<bool, String> {
    let pages = if options.pages.is_empty() { find_pages(&root())? } else { options.pages.clone() };
    let mut programs = create_programs()?;
    let mut times = Times::read(&root().join("target/tables/times.json"));
    let (mut tables, mut faults) = (0, 0);
    for page in &pages {
        let page_name = page.strip_prefix(root()).unwrap_or(page).display().to_string();
        let read = || std::fs::read_to_string(page).map_err(|error| format!("{page_name}: {error}"));
        let mut page_text = read()?;
        let count = slots(&page_text).map_err(|error| format!("{page_name}: {error}"))?.len();
        for line in unmarked(&page_text) {
            eprintln!("{page_name}:{line}: a table of figures without a mark that names its command");
            faults += 1;
        }
        for index in 0..count {
            // The page is parsed again, because writing a table moves the tables after it.
            let slot = slots(&page_text)?.swap_remove(index);
            let (location, commands) = (format!("{page_name}:{}", slot.line), slot.commands());
            if options.list {
                list_slot(&location, &slot, times.get(&commands));
                continue;
            }
            if !is_asked_for(&slot.class, options) {
                continue;
            }
            if options.measured && !slot.lines.iter().all(|line| is_known(&line.command)) {
                println!("{location}: entered by hand: {commands}");
                continue;
            }
            eprintln!("{location}: {}", shorten(&commands));
            let start = Instant::now();
            tables += 1;
            match produce_table(&slot, &mut programs) {
                Err(error) => {
                    eprintln!("{location}: FAILED: {error}");
                    faults += 1;
                }
                Ok(table) => {
                    times.note(&commands, start);
                    let current = &page_text[slot.range.clone()];
                    if options.check && *current != table {
                        faults += 1;
                        println!("{location}: differs from what its command prints now: {commands}");
                        print!("{}", diff(current, &table));
                    } else if !options.check {
                        page_text = replace_table(&page_text, &slot, &table, &today());
                        write_page(page, &page_text).map_err(|error| format!("{page_name}: {error}"))?;
                    }
                }
            }
        }
    }
    if !options.list {
        eprintln!("{tables} tables, {faults} differ or failed");
    }
    Ok(faults == 0)
}

/// Returns the beginning of the commands, for a progress line.
fn shorten(commands: &str) -> String {
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

fn list_slot(location: &str, slot: &Slot, seconds: Option<f64>) {
    let seconds = seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1}"));
    println!("{location:<36} {:<8} {seconds:>8} s  {}", slot.class.name(), slot.commands());
}

/// Writes a page atomically.
fn write_page(page: &Path, text: &str) -> std::io::Result<()> {
    let part = page.with_extension("md.part");
    std::fs::write(&part, text)?;
    std::fs::rename(&part, page)
}

/// Finds all pages below a directory, sorted. Skips build output and hidden directories.
fn find_pages(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let with_path = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut entries =
        std::fs::read_dir(directory).map_err(with_path)?.collect::<Result<Vec<_>, _>>().map_err(with_path)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut pages = Vec::new();
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            pages.extend(find_pages(&path)?);
        } else if name.ends_with(".md") {
            pages.push(path);
        }
    }
    Ok(pages)
}
