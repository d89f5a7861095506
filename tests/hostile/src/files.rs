//! Fuzz target for readers of data files: a reader must return consistent samples or an error, and must not
//! use more memory than the size of the file justifies.

use fedspan_sim_core::data::cifar::{self, Kind};
use fedspan_sim_core::data::idx::Idx;
use fedspan_sim_core::data::leaf::{self, json, words::Vectors};
use fedspan_sim_core::data::npz::{self, Arrays};
use fedspan_sim_core::data::table::{self, CodedNames, Columns, Table, Target};
use fedspan_sim_core::data::{DataError, Labels, Set};

use crate::{Random, Work};

/// Largest expansion of a compressed byte (RFC 1951: 258 bytes in two bits, plus the block header).
const DEFLATE_RATIO: usize = 1032;
/// Number of values that a reader may allocate even for an empty file: those of the header.
const HEADER_VALUES: usize = 64;

/// Runs one input: the first byte selects the reader, the second is the length of the first of two files.
pub fn data_files(bytes: &[u8]) -> Work {
    let Some(([kind, first_length], content)) = bytes.split_first_chunk() else {
        return Work { frames: 1, refused: 1, steps: 1 };
    };
    let (first, second) = content.split_at(usize::from(*first_length).min(content.len()));
    let length = content.len();
    let result = match kind % 7 {
        0 => read_idx(&Idx::default(), first, second),
        1 => read_idx(&Idx { first_label: 1, transposed: true, ..Idx::default() }, first, second),
        2 => read_images(first, second),
        3 => read_users(content),
        4 => read_tweets(first, second),
        5 => read_table(content),
        _ => read_archive(content),
    };
    if let Err(error) = &result {
        assert!(error.file.starts_with("a ") && !error.message.is_empty(), "{error:?}");
        assert!(error.message.len() <= 4 * length + 1000, "a message of {} bytes", error.message.len());
    }
    Work { frames: 1, refused: u64::from(result.is_err()), steps: 1 }
}

/// Reads an IDX file of images and an IDX file of labels.
fn read_idx(idx: &Idx, images: &[u8], labels: &[u8]) -> Result<(), DataError> {
    let names = ["a file of images", "a file of labels"];
    let pool = idx.parse([(images, names[0]), (labels, names[1])], None)?;
    check_set(&pool.set, pool.features, pool.classes);
    assert!(pool.set.x.len() <= 2 * DEFLATE_RATIO * images.len() + HEADER_VALUES);
    Ok(())
}

/// Reads CIFAR records. Records are longer than a fuzzer's inputs, so the input is repeated, and the last
/// record may be incomplete.
fn read_images(first: &[u8], second: &[u8]) -> Result<(), DataError> {
    let kind = match first.first() {
        Some(0..=99) => Kind::Ten,
        Some(100..=199) => Kind::Fine,
        _ => Kind::Coarse,
    };
    let count = first.iter().map(|byte| usize::from(*byte)).sum::<usize>() % 4 * 3074;
    let bytes: Vec<u8> = second.iter().copied().cycle().take(count.max(second.len())).collect();
    let mut set = Set::empty(true);
    cifar::append(&bytes, "a file of records", kind, &mut set)?;
    check_set(&set, 3073, 100);
    assert!(set.x.len() <= bytes.len());
    Ok(())
}

/// Reads a LEAF file of users with numeric samples.
fn read_users(bytes: &[u8]) -> Result<(), DataError> {
    let users = json::parse(bytes, "a file of users")?;
    let pool = leaf::pool("a file of users", &[users], None)?;
    check_set(&pool.set, pool.features, pool.classes);
    let mut samples: Vec<usize> = pool.users.iter().flat_map(|user| user.samples.clone()).collect();
    samples.sort_unstable();
    assert!(samples.into_iter().eq(0..pool.set.len()), "a sample belongs to no user or to several");
    assert!(pool.set.x.len() <= bytes.len() + HEADER_VALUES);
    Ok(())
}

/// Reads word vectors and a text, and embeds the text.
fn read_tweets(vectors: &[u8], text: &[u8]) -> Result<(), DataError> {
    let text = String::from_utf8_lossy(text);
    let vectors = Vectors::parse(vectors, "a file of vectors", 100, [text.as_ref()].into_iter())?;
    let mean = vectors.mean(&text);
    assert!(mean.len() == vectors.width && mean.iter().all(|value| value.is_finite()));
    let sequence = vectors.sequence(&text, 3);
    assert!(sequence.len() == 3 * vectors.width && sequence.iter().all(|value| value.is_finite()));
    Ok(())
}

/// Reads a delimited table.
fn read_table(bytes: &[u8]) -> Result<(), DataError> {
    let classification = bytes.len() % 2 == 1;
    let columns = Columns {
        client: Some("who".to_owned()),
        target: "y".to_owned(),
        features: vec!["a".to_owned(), "b".to_owned()],
        classification,
        delimiter: None,
        decimal: None,
        not_missing: Vec::new(),
    };
    let table = table::parse(bytes, "a table", &columns)?;
    // The reader also accepts gzip, which expands.
    check_table(&table, DEFLATE_RATIO * bytes.len());
    Ok(())
}

/// Reads a NumPy archive.
fn read_archive(bytes: &[u8]) -> Result<(), DataError> {
    let arrays = Arrays { classification: bytes.len() % 2 == 1, ..Arrays::default() };
    let (table, _) = npz::table(bytes, "a file", &arrays)?;
    check_table(&table, DEFLATE_RATIO * bytes.len());
    Ok(())
}

/// Checks a table and its samples: as many feature rows as targets, finite values, valid codes.
fn check_table(table: &Table, length: usize) {
    let rows = table.rows();
    assert_eq!(table.x.len(), rows * table.features.len());
    assert!(table.x.iter().all(|value| value.is_finite()));
    assert!(table.x.len() <= 2 * length + HEADER_VALUES);
    let coded = |coded: &CodedNames| {
        assert_eq!(coded.codes.len(), rows);
        assert!(coded.codes.iter().all(|code| (*code as usize) < coded.names.len()));
    };
    match &table.target {
        Target::Values(values) => assert!(values.iter().all(|value| value.is_finite())),
        Target::Classes(classes) => coded(classes),
    }
    table.clients.iter().for_each(coded);
    let pool = table.clone().pool(true);
    let wide = pool.set.x_f64.as_ref().map_or(0, Vec::len);
    assert_eq!(wide, rows * (table.features.len() + 1));
}

/// Checks a set of samples: whole rows, finite values, labels below the number of classes.
fn check_set(set: &Set, features: usize, classes: usize) {
    assert_eq!(set.x.len(), set.len() * features);
    assert!(set.x.iter().all(|value| value.is_finite()));
    if let Labels::Classes(labels) = &set.y {
        assert!(labels.iter().all(|label| usize::from(*label) < classes));
    }
}

/// Returns valid and invalid files of every format.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut random = Random(5);
    let mut seeds = Vec::new();
    let mut add_seed = |kind: u8, first: &[u8], second: &[u8]| {
        let first_length = u8::try_from(first.len()).expect("a short first file");
        seeds.push([&[kind, first_length], first, second].concat());
    };
    for side in 1..5u8 {
        let (n, pixels) = (3, 3 * side * (side + 1));
        let head = [0, 0, 8, 3, 0, 0, 0, n, 0, 0, 0, side, 0, 0, 0, side + 1];
        let images: Vec<u8> = head.into_iter().chain((0..pixels).map(|_| random.byte())).collect();
        let labels = [0, 0, 8, 1, 0, 0, 0, n, 1, side, 255];
        add_seed(0, &images, &labels);
        add_seed(1, &images, &labels);
        add_seed(2, &[1, side], &[side; 40]);
        add_seed(2, &[100, side], &[side; 40]);
        add_seed(2, &[250, side], &[side; 40]);
    }
    add_seed(4, b"good 1 2\nday -4 1e3\n, 3 3\n", b"Good, good day");
    add_seed(4, "café .5\n".as_bytes(), "Un café!".as_bytes());
    for text in [
        r#"{"users": ["b", "a"], "num_samples": [1, 2], "user_data": {"b": {"x": [[0, -0.5]], "y": [1]},
           "a": {"x": [[1e3, 1], [2, 2]], "y": [2, 0]}}}"#,
        r#"{"hierarchies": [[], {"k": null}], "user_data": {"": {"y": [], "x": []}, "u": {"y": [255], "x": [[7]]}}}"#,
        r#"{"user_data": {"u": {"x": [["1", "2", "3", "4", "a text", "6"]], "y": [0]}}}"#,
    ] {
        add_seed(3, b"", text.as_bytes());
    }
    for text in
        ["who,a,b,y\n1,2,3,4\n1,0.5,-3,2\n2,1e3,0,7\n", "y,who,b,a\n\"one, two\",x,1,2\nthree,x,-1,0\n"]
    {
        add_seed(5, b"", text.as_bytes());
    }
    seeds.extend(ARCHIVES.map(|archive| [&[6, 0], archive].concat()));
    seeds
}

/// NumPy archives: compressed values, classes, and an archive with the owner of each row.
const ARCHIVES: [&[u8]; 3] = [
    include_bytes!("files/values.npz"),
    include_bytes!("files/classes.npz"),
    include_bytes!("files/owners.npz"),
];
