//! Reader of the table of boards, `edge-client/boards/boards.toml`.

use std::path::Path;

use toml_edit::{DocumentMut, TableLike};

/// Path of the table, relative to the root of the repository.
pub const FILE: &str = "edge-client/boards/boards.toml";

/// All boards and cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boards {
    /// Cores for which programs are linked without a board.
    pub cores: Vec<Core>,
    /// Emulated boards, in the order of the documents' tables.
    pub emulated: Vec<Emulated>,
    /// Boards of real hardware.
    pub hardware: Vec<Hardware>,
    /// Programs that are linked without a board.
    pub linked: Vec<Linked>,
}

/// Core for which programs are linked without a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Name of the core in tables.
    pub name: String,
    /// Target of rustc.
    pub target: String,
    /// Whether the client crate is also built alone for this core.
    pub bare_metal: bool,
}

/// Emulated board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulated {
    /// Name of the board on command lines and in the lists of budgets.
    pub name: String,
    /// Name of the core in tables.
    pub core: String,
    /// Machine that runs the board's programs.
    pub machine: Machine,
    /// Address of the flash partition with the samples.
    pub partition: u32,
    /// Size of this partition in bytes.
    pub room: usize,
    /// Optimisation levels that are measured, see [`level_options`].
    pub levels: Vec<String>,
    /// Whether cycles are estimated, see [`crate::cycles`].
    pub cycles: bool,
    /// Shapes "d-k-m" of FedPower iterations that are measured.
    pub power: Vec<String>,
    /// Features of networks that are measured.
    pub networks: Vec<String>,
    /// Networks whose cycles are estimated.
    pub network_cycles: Vec<String>,
    /// Machine that runs the networks.
    pub network_machine: Machine,
}

/// Firmware, and the emulator that runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Folder below `edge-client/boards`.
    pub folder: String,
    /// Target of rustc.
    pub target: String,
    /// Feature that replaces the default features of the folder.
    pub feature: Option<String>,
    /// Name of QEMU's program.
    pub emulator: String,
    /// Arguments that select the machine.
    pub arguments: Vec<String>,
}

/// Board of real hardware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Folder below `edge-client/boards`, which is also the name of the board.
    pub name: String,
    /// Target of rustc.
    pub target: String,
}

/// Program that is linked without a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linked {
    /// Name of the binary.
    pub program: String,
    /// Optimisation level, see [`level_options`].
    pub level: String,
    /// Name of the variant in the list of budgets.
    pub label: String,
    /// Features of the package in the folder `least`.
    pub features: Vec<String>,
    /// Names of the cores for which the program is linked; `None` means all cores.
    pub cores: Option<Vec<String>>,
    /// Purpose of the feature, for the table of features.
    pub purpose: Option<String>,
}

impl Boards {
    /// Reads the table of a repository from its file.
    ///
    /// # Errors
    /// A message that names the file and the first fault.
    pub fn read(root: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(root.join(FILE)).map_err(|error| format!("{FILE}: {error}"))?;
        Self::parse(&text).map_err(|fault| format!("{FILE}: {fault}"))
    }

    /// Parses the text of the table.
    ///
    /// # Errors
    /// A message about the first fault.
    pub fn parse(text: &str) -> Result<Self, String> {
        let document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
        let entries = |name: &'static str| {
            let entries = document.get(name).and_then(toml_edit::Item::as_array_of_tables);
            let entries = entries.ok_or_else(|| format!("[[{name}]] is missing"))?;
            Ok::<_, String>(entries.iter().map(move |table| Entry { list: name, table }).collect::<Vec<_>>())
        };
        let boards = Self {
            cores: entries("core")?.iter().map(Core::read).collect::<Result<_, _>>()?,
            emulated: entries("emulated")?.iter().map(Emulated::read).collect::<Result<_, _>>()?,
            hardware: entries("hardware")?.iter().map(Hardware::read).collect::<Result<_, _>>()?,
            linked: entries("linked")?.iter().map(Linked::read).collect::<Result<_, _>>()?,
        };
        for linked in &boards.linked {
            for core in linked.cores.iter().flatten() {
                if !boards.cores.iter().any(|known| known.name == *core) {
                    return Err(format!(
                        "[[linked]] {}: found core {core:?}, allowed: a name of [[core]]",
                        linked.program
                    ));
                }
            }
        }
        Ok(boards)
    }

    /// Returns every target of rustc once.
    #[must_use]
    pub fn targets(&self) -> Vec<String> {
        let cores = self.cores.iter().map(|core| &core.target);
        let emulated = self.emulated.iter().map(|board| &board.machine.target);
        let hardware = self.hardware.iter().map(|board| &board.target);
        let mut targets: Vec<String> = cores.chain(emulated).chain(hardware).cloned().collect();
        targets.sort();
        targets.dedup();
        targets
    }

    /// Returns the pairs of program and core, in the order in which they are linked.
    pub fn links(&self) -> impl Iterator<Item = (&Linked, &Core)> {
        let fits = |linked: &Linked, core: &Core| {
            linked.cores.as_ref().is_none_or(|cores| cores.contains(&core.name))
        };
        let of_core = move |core| self.linked.iter().map(move |linked| (linked, core));
        self.cores.iter().flat_map(of_core).filter(move |(linked, core)| fits(linked, core))
    }

    /// Returns the emulated board with a name.
    #[must_use]
    pub fn emulated(&self, name: &str) -> Option<&Emulated> {
        self.emulated.iter().find(|board| board.name == name)
    }
}

/// Returns cargo's options for an optimisation level; `None` if there is no such level.
#[must_use]
pub fn level_options(level: &str) -> Option<&'static [&'static str]> {
    match level {
        // This level is set in the boards' Cargo.toml.
        "s" => Some(&[]),
        "3" => Some(&["--config", "profile.release.opt-level=3"]),
        "3+s" => Some(&[
            "--config",
            "profile.release.opt-level=3",
            "--config",
            "profile.release.package.fedspan-client.opt-level=\"s\"",
            "--config",
            "profile.release.package.fedspan-protocol.opt-level=\"s\"",
        ]),
        _ => None,
    }
}

/// One entry of a list of the table. Its list and name are used in error messages.
struct Entry<'a> {
    list: &'static str,
    table: &'a dyn TableLike,
}

impl Entry<'_> {
    fn format_fault(&self, key: &str, allowed: &str) -> String {
        let name = ["name", "program"]
            .iter()
            .find_map(|key| self.table.get(key)?.as_str())
            .unwrap_or("without a name");
        format!("[[{}]] {name}: {key} must be {allowed}", self.list)
    }

    fn word(&self, key: &str) -> Result<String, String> {
        let word = self.table.get(key).and_then(toml_edit::Item::as_str);
        word.map(str::to_owned).ok_or_else(|| self.format_fault(key, "a word"))
    }

    fn optional_word(&self, key: &str) -> Result<Option<String>, String> {
        self.table.get(key).map(|_| self.word(key)).transpose()
    }

    fn words(&self, key: &str) -> Result<Vec<String>, String> {
        let list = self.table.get(key).and_then(toml_edit::Item::as_array);
        let words =
            list.map(|list| list.iter().map(|word| word.as_str().map(str::to_owned)).collect::<Option<_>>());
        words.flatten().ok_or_else(|| self.format_fault(key, "a list of words"))
    }

    fn optional_words(&self, key: &str) -> Result<Option<Vec<String>>, String> {
        self.table.get(key).map(|_| self.words(key)).transpose()
    }

    fn number<T: TryFrom<i64>>(&self, key: &str) -> Result<T, String> {
        let number = self
            .table
            .get(key)
            .and_then(toml_edit::Item::as_integer)
            .and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| self.format_fault(key, "a whole number in its range"))
    }

    fn flag(&self, key: &str) -> Result<bool, String> {
        match self.table.get(key) {
            None => Ok(false),
            Some(flag) => flag.as_bool().ok_or_else(|| self.format_fault(key, "true or false")),
        }
    }

    fn check_level(&self, level: &str) -> Result<(), String> {
        level_options(level)
            .map(|_| ())
            .ok_or_else(|| self.format_fault("a level", "\"3\", \"3+s\" or \"s\""))
    }
}

impl Core {
    fn read(entry: &Entry<'_>) -> Result<Self, String> {
        let bare_metal = entry.flag("bare_metal")?;
        Ok(Self { name: entry.word("name")?, target: entry.word("target")?, bare_metal })
    }
}

impl Machine {
    fn read(entry: &Entry<'_>, target: String) -> Result<Self, String> {
        let mut arguments = entry.words("emulator")?;
        if arguments.is_empty() {
            return Err(entry.format_fault("emulator", "a program and its arguments"));
        }
        let emulator = arguments.remove(0);
        let (folder, feature) = (entry.word("folder")?, entry.optional_word("feature")?);
        Ok(Self { folder, target, feature, emulator, arguments })
    }
}

impl Emulated {
    fn read(entry: &Entry<'_>) -> Result<Self, String> {
        let machine = Machine::read(entry, entry.word("target")?)?;
        let network_machine = match entry.table.get("network_board") {
            None => machine.clone(),
            Some(board) => {
                let table =
                    board.as_table_like().ok_or_else(|| entry.format_fault("network_board", "a table"))?;
                Machine::read(&Entry { list: entry.list, table }, machine.target.clone())?
            }
        };
        let levels = entry.words("levels")?;
        levels.iter().try_for_each(|level| entry.check_level(level))?;
        Ok(Self {
            name: entry.word("name")?,
            core: entry.word("core")?,
            machine,
            partition: entry.number("partition")?,
            room: entry.number("room")?,
            levels,
            cycles: entry.flag("cycles")?,
            power: entry.optional_words("power")?.unwrap_or_default(),
            networks: entry.optional_words("networks")?.unwrap_or_default(),
            network_cycles: entry.optional_words("network_cycles")?.unwrap_or_default(),
            network_machine,
        })
    }
}

impl Hardware {
    fn read(entry: &Entry<'_>) -> Result<Self, String> {
        Ok(Self { name: entry.word("name")?, target: entry.word("target")? })
    }
}

impl Linked {
    fn read(entry: &Entry<'_>) -> Result<Self, String> {
        let level = entry.word("level")?;
        entry.check_level(&level)?;
        Ok(Self {
            program: entry.word("program")?,
            level,
            label: entry.word("label")?,
            features: entry.words("features")?,
            cores: entry.optional_words("cores")?,
            purpose: entry.optional_word("purpose")?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::*;

    fn root() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
    }

    fn table_text() -> String {
        std::fs::read_to_string(root().join(FILE)).unwrap()
    }

    #[test]
    fn every_folder_is_there_and_every_folder_with_firmware_is_in_the_table() {
        let boards = Boards::read(&root()).unwrap();
        let machines = boards.emulated.iter().flat_map(|board| [&board.machine, &board.network_machine]);
        let folders = machines.map(|machine| machine.folder.clone()).chain(["least".to_owned()]);
        let named: BTreeSet<String> =
            folders.chain(boards.hardware.iter().map(|board| board.name.clone())).collect();
        let mut with_firmware = BTreeSet::new();
        for entry in std::fs::read_dir(root().join("edge-client/boards")).unwrap() {
            let entry = entry.unwrap();
            // Libraries that boards share have no programs.
            if entry.path().join("src/bin").is_dir() {
                with_firmware.insert(entry.file_name().into_string().unwrap());
            }
        }
        assert_eq!(named, with_firmware);
    }

    #[test]
    fn every_linked_variant_is_there_once() {
        let boards = Boards::read(&root()).unwrap();
        let variants: Vec<_> =
            boards.links().map(|(l, core)| (&l.program, &core.target, &l.level, &l.label)).collect();
        assert_eq!(variants.iter().collect::<BTreeSet<_>>().len(), variants.len());
    }

    #[test]
    fn every_folder_with_a_memory_map_has_the_shared_build_script() {
        let boards = root().join("edge-client/boards");
        let mut folders = 0;
        for entry in std::fs::read_dir(&boards).unwrap() {
            let folder = entry.unwrap().path();
            if folder.join("memory.x").is_file() {
                let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
                let manifest: DocumentMut = manifest.parse().unwrap();
                assert_eq!(
                    manifest["package"]["build"].as_str(),
                    Some("../build.rs"),
                    "{}",
                    folder.display()
                );
                folders += 1;
            }
        }
        assert!(folders > 0 && boards.join("build.rs").is_file());
    }

    #[test]
    fn names_and_targets_are_unique_and_all_targets_are_listed() {
        let boards = Boards::read(&root()).unwrap();
        let names: BTreeSet<_> = boards.emulated.iter().map(|board| &board.name).collect();
        assert_eq!(names.len(), boards.emulated.len());
        let targets = boards.targets();
        assert_eq!(targets.iter().collect::<BTreeSet<_>>().len(), targets.len());
        let machines = boards.emulated.iter().map(|board| &board.machine.target);
        let mut used = machines
            .chain(boards.hardware.iter().map(|board| &board.target))
            .chain(boards.cores.iter().map(|core| &core.target));
        assert!(used.all(|target| targets.contains(target)), "{targets:?}");
        assert_eq!(boards.emulated("m0").unwrap().network_machine.folder, "qemu-mps2");
        assert_eq!(boards.emulated("m5"), None);
    }

    /// Reads `runner` of every target from a file of cargo's settings: the words that select the machine, and
    /// the other options.
    fn read_runners(file: &Path) -> Vec<(String, String)> {
        let settings: DocumentMut = std::fs::read_to_string(file).unwrap().parse().unwrap();
        let targets = settings["target"].as_table().unwrap().iter();
        let runners = targets.map(|(_, target)| target["runner"].as_str().unwrap());
        let runners = runners.map(|runner| runner.split_once(" -icount").unwrap());
        runners.map(|(machine, options)| (machine.to_owned(), options.to_owned())).collect()
    }

    #[test]
    fn runners_of_emulated_boards_differ_in_their_machine_only() {
        let (mut machines, mut all_options) = (BTreeSet::new(), BTreeSet::new());
        let boards = Boards::read(&root()).unwrap();
        let expected: BTreeSet<String> = boards
            .emulated
            .iter()
            .map(|board| format!("{} {}", board.machine.emulator, board.machine.arguments.join(" ")))
            .collect();
        let folders: BTreeSet<&str> =
            boards.emulated.iter().map(|board| board.machine.folder.as_str()).collect();
        for folder in folders {
            let folder = root().join("edge-client/boards").join(folder);
            let further_settings = std::fs::read_dir(folder.join("memory")).into_iter().flatten();
            let further_settings = further_settings.map(|entry| entry.unwrap().path());
            let further_settings =
                further_settings.filter(|file| file.extension().is_some_and(|ending| ending == "toml"));
            for file in std::iter::once(folder.join(".cargo/config.toml")).chain(further_settings) {
                let (machine, options): (Vec<_>, Vec<_>) = read_runners(&file).into_iter().unzip();
                machines.extend(machine);
                all_options.extend(options);
            }
        }
        assert_eq!(machines, expected);
        assert_eq!(all_options.len(), 1, "{all_options:#?}");
    }

    #[test]
    fn cores_with_estimated_cycles_have_a_table_of_cycles() {
        for board in Boards::read(&root()).unwrap().emulated.iter().filter(|board| board.cycles) {
            assert!(crate::cycles::Core::named(&board.name).is_some(), "{}", board.name);
        }
    }

    #[test]
    fn faults_name_list_entry_key_and_allowed_values() {
        for (old, new, fault) in [
            ("folder = \"qemu-riscv\"\n", "", "[[emulated]] rv32imc: folder must be a word"),
            ("cycles = true", "cycles = 1", "[[emulated]] m4: cycles must be true or false"),
            (
                "partition = 0x00030000",
                "partition = -1",
                "[[emulated]] m0: partition must be a whole number in its range",
            ),
            (
                "level = \"3+s\"",
                "level = \"2\"",
                "[[linked]] client: a level must be \"3\", \"3+s\" or \"s\"",
            ),
            (
                "cores = [\"Cortex-M0\"]",
                "cores = [\"M0\"]",
                "[[linked]] client: found core \"M0\", allowed: a name of [[core]]",
            ),
            ("[[hardware]]", "[[gone]]", "[[hardware]] is missing"),
        ] {
            assert_eq!(Boards::parse(&table_text().replace(old, new)).unwrap_err(), fault);
        }
    }
}
