//! Test helpers: a table, and a writer for the variants of CSV files that programs write.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Text(String),
    Number(f64),
    Truth(bool),
}

/// Table with column names and rows of cells.
#[derive(Clone, Debug)]
pub struct Grid {
    pub header: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
}

/// Text encoding of a file; `Utf8Mark` begins with a byte order mark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Encoding {
    Utf8,
    Utf8Mark,
    Utf16Little,
    Utf16Big,
}

/// Compression of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Packing {
    Plain,
    Gzip,
    /// File of two gzip members.
    GzipTwice,
}

/// Format of a table file.
#[derive(Clone, Copy, Debug)]
pub struct Writing {
    pub encoding: Encoding,
    pub delimiter: char,
    pub decimal: char,
    /// True if every cell is quoted; otherwise only cells that require quotes.
    pub quotes: bool,
    pub end: &'static str,
    pub packing: Packing,
    /// Text before and after every cell.
    pub blanks: (&'static str, &'static str),
    pub truths: [&'static str; 2],
    /// True if the last line ends with a line break.
    pub ended: bool,
}

impl Writing {
    /// Format that most programs write.
    pub const PLAIN: Self = Self {
        encoding: Encoding::Utf8,
        delimiter: ',',
        decimal: '.',
        quotes: false,
        end: "\n",
        packing: Packing::Plain,
        blanks: ("", ""),
        truths: ["False", "True"],
        ended: true,
    };

    /// Writes a table and returns the bytes of the file.
    pub fn write(&self, grid: &Grid) -> Vec<u8> {
        let header: Vec<String> = grid.header.iter().map(|name| self.quote_cell(name)).collect();
        let row = |cells: &Vec<Cell>| cells.iter().map(|cell| self.format_cell(cell)).collect::<Vec<_>>();
        let lines: Vec<String> = [header]
            .into_iter()
            .chain(grid.rows.iter().map(row))
            .map(|cells| cells.join(&self.delimiter.to_string()))
            .collect();
        let mut text = lines.join(self.end);
        if self.ended {
            text += self.end;
        }
        self.compress(&self.encode_text(&text))
    }

    fn format_cell(&self, cell: &Cell) -> String {
        match cell {
            Cell::Text(text) => self.quote_cell(text),
            Cell::Number(value) => {
                self.quote_cell(&value.to_string().replace('.', &self.decimal.to_string()))
            }
            Cell::Truth(truth) => self.quote_cell(self.truths[usize::from(*truth)]),
        }
    }

    /// Cell with surrounding text and, if required, quotes.
    fn quote_cell(&self, text: &str) -> String {
        let needed = text.contains([self.delimiter, '"', '\n', '\r']) || text.trim() != text;
        let (before, after) = self.blanks;
        if needed || self.quotes {
            format!("{before}\"{}\"{after}", text.replace('"', "\"\""))
        } else {
            format!("{before}{text}{after}")
        }
    }

    /// Bytes of a text in the encoding of this format.
    pub fn encode_text(&self, text: &str) -> Vec<u8> {
        let units = || ['\u{feff}'].into_iter().chain(text.chars()).collect::<String>();
        match self.encoding {
            Encoding::Utf8 => text.as_bytes().to_vec(),
            Encoding::Utf8Mark => units().into_bytes(),
            Encoding::Utf16Little => units().encode_utf16().flat_map(u16::to_le_bytes).collect(),
            Encoding::Utf16Big => units().encode_utf16().flat_map(u16::to_be_bytes).collect(),
        }
    }

    /// Bytes after compression.
    pub fn compress(&self, bytes: &[u8]) -> Vec<u8> {
        let gzip = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let (first, second) = bytes.split_at(bytes.len() / 2);
        match self.packing {
            Packing::Plain => bytes.to_vec(),
            Packing::Gzip => gzip(bytes),
            Packing::GzipTwice => [gzip(first), gzip(second)].concat(),
        }
    }
}
