//! Estimator of cycles: sums the costs of the instructions in a log of QEMU, with a table of costs for each
//! core.
//!
//! Sources: the reference manuals of Cortex-M0 (ARM DDI 0432C, table 3-1), Cortex-M3 (ARM 100165, table 3-1)
//! and Cortex-M4 (ARM 100166, tables 3-1 and 7-1). Assumptions: memory without wait states, a single-cycle
//! multiplier on the M0, two cycles to refill the pipeline after a branch on M3 and M4, and the longest
//! division. RV32IMC has no such table; the model assumes a four-stage in-order core with two cycles for a
//! load, three for a jump and 34 for a division. A chip that runs from flash with wait states is slower. No
//! estimate has been compared with a measurement on a chip.

use std::collections::HashMap;
use std::io::BufRead;

/// A core with a table of costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Core {
    /// Cortex-M0.
    M0,
    /// Cortex-M3.
    M3,
    /// Cortex-M4 with its single-precision FPU.
    M4,
    /// A RISC-V core like the one in the ESP32-C3.
    Rv32imc,
}

impl Core {
    /// Looks up a core by its name in the table of boards.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "m0" => Some(Self::M0),
            "m3" => Some(Self::M3),
            "m4" => Some(Self::M4),
            "rv32imc" => Some(Self::Rv32imc),
            _ => None,
        }
    }
}

/// Cost of an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    /// Cycles without a jump.
    straight: u64,
    /// Additional cycles if the instruction jumps.
    jump: u64,
    /// Whether the instruction is a single load. On M3 and M4 a load directly after another one takes one
    /// cycle less.
    load: bool,
}

/// Basic block: instructions that are executed one after another.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Address of the instruction after the block.
    end: u64,
    straight: u64,
    jump: u64,
}

/// Sums the cycles of a log of `qemu -d in_asm,exec,nochain`.
///
/// # Errors
/// If a line cannot be parsed, an executed block was not listed, or the table lacks an instruction.
pub fn estimate(core: Core, log: impl BufRead) -> Result<u64, String> {
    let mut blocks: HashMap<u64, Block> = HashMap::new();
    let mut listed: Vec<Instruction> = Vec::new();
    let mut previous: Option<Block> = None;
    let mut total = 0;
    for line in log.split(b'\n') {
        let line = line.map_err(|error| error.to_string())?;
        // Symbol names may contain bytes that are not UTF-8.
        let line = String::from_utf8_lossy(&line);
        if let Some(traced) = line.strip_prefix("Trace ") {
            if let Some(first) = listed.first() {
                let block = sum_block(core, &listed)?;
                blocks.insert(first.address, block);
                listed.clear();
            }
            let address = traced_address(traced).ok_or_else(|| format!("cannot parse {line:?}"))?;
            if let Some(previous) = previous {
                total += if address == previous.end {
                    previous.straight
                } else {
                    previous.straight + previous.jump
                };
            }
            previous = Some(
                *blocks
                    .get(&address)
                    .ok_or_else(|| format!("block {address:#x} was executed but not listed"))?,
            );
        } else if line.starts_with("Stopped execution") {
            // The last traced block was not executed. QEMU traces it again when it is executed.
            previous = None;
        } else if line.starts_with("cpu_io_recompile") {
            return Err("the log was made with -icount, under which QEMU executes blocks twice".to_owned());
        } else if line.starts_with("0x") {
            listed.push(Instruction::parse(&line).ok_or_else(|| format!("cannot parse {line:?}"))?);
        }
    }
    Ok(total + previous.map_or(0, |block| block.straight))
}

/// Parses the address in `0: 0x7f.. [flags/ADDRESS/...] name`.
fn traced_address(traced: &str) -> Option<u64> {
    let (_, inside) = traced.split_once('[')?;
    u64::from_str_radix(inside.split('/').nth(1)?, 16).ok()
}

/// Sums the costs of the instructions of a block.
fn sum_block(core: Core, instructions: &[Instruction]) -> Result<Block, String> {
    let mut block = Block::default();
    let mut after_load = false;
    for instruction in instructions {
        let cost = instruction
            .cost(core)
            .ok_or_else(|| format!("the table lacks {} {}", instruction.name, instruction.operands))?;
        let is_paired = cost.load && after_load && matches!(core, Core::M3 | Core::M4);
        block.straight += cost.straight - u64::from(is_paired);
        block.jump = cost.jump;
        block.end = instruction.address + instruction.length;
        after_load = cost.load;
    }
    Ok(block)
}

/// Instruction in a log.
#[derive(Clone, Debug)]
struct Instruction {
    address: u64,
    length: u64,
    name: String,
    operands: String,
}

impl Instruction {
    /// Parses `0x00000400:  f008 ff3d  bl       #0x927e`.
    fn parse(line: &str) -> Option<Self> {
        let (address, instruction) = line.strip_prefix("0x")?.split_once(':')?;
        let mut words = instruction.split_whitespace().peekable();
        let mut digits = 0;
        while let Some(word) = words.peek()
            && word.len().is_multiple_of(4)
            && word.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            && digits < 8
        {
            digits += word.len();
            words.next();
        }
        let name = words.next()?.to_owned();
        let operands = words.take_while(|word| *word != "#").collect::<Vec<_>>().join(" ");
        let address = u64::from_str_radix(address, 16).ok()?;
        Some(Self { address, length: digits as u64 / 2, name, operands })
    }

    /// Returns the number of registers in `{..}`, with ranges expanded; 1 without a list.
    fn listed_registers(&self) -> u64 {
        let Some((_, list)) = self.operands.split_once('{') else { return 1 };
        let list = list.split('}').next().unwrap_or_default();
        list.split(',').map(|part| registers_in(part.trim())).sum()
    }

    fn cost(&self, core: Core) -> Option<Cost> {
        match core {
            Core::Rv32imc => Some(self.risc_v_cost()),
            Core::M0 => self.cortex_m_cost(&M0),
            Core::M3 => self.cortex_m_cost(&M3),
            Core::M4 => self.cortex_m_cost(&M4),
        }
    }

    /// Returns the cost of an instruction of the RISC-V core.
    fn risc_v_cost(&self) -> Cost {
        let plain = |straight| Cost { straight, ..Cost::default() };
        match self.name.as_str() {
            "lw" | "lh" | "lhu" | "lb" | "lbu" => plain(2),
            "div" | "divu" | "rem" | "remu" => plain(34),
            name if name.starts_with('b') || name.starts_with('j') || name == "ret" => {
                Cost { straight: 1, jump: 2, load: false }
            }
            _ => plain(1),
        }
    }

    /// Returns the cost of an instruction of a Cortex-M core; `None` if the table lacks it.
    fn cortex_m_cost(&self, table: &Table) -> Option<Cost> {
        let plain = |straight| Some(Cost { straight, ..Cost::default() });
        let jump = |straight| Some(Cost { straight, jump: table.refill, load: false });
        let name = self.name.split('.').next().unwrap_or_default();
        let loads_pc = self.operands.split('{').next_back().is_some_and(|list| list.contains("pc}"));
        let n = self.listed_registers();
        if let Some(float) = name.strip_prefix('v') {
            return (table.float).then(|| self.fpu_cost(float)).flatten();
        }
        // Longer names come first, because a prefix also matches names with conditions and widths.
        match name {
            _ if name.starts_with("ldm") || name.starts_with("pop") => {
                if loads_pc {
                    jump(1 + n + table.pop_pc)
                } else {
                    plain(1 + n)
                }
            }
            _ if name.starts_with("stm") || name.starts_with("push") => plain(1 + n),
            _ if name.starts_with("ldrd") => plain(3),
            _ if name.starts_with("strd") => plain(3),
            _ if name.starts_with("ldr") => {
                if self.operands.starts_with("pc,") {
                    jump(2)
                } else {
                    Some(Cost { straight: 2, jump: 0, load: true })
                }
            }
            _ if name.starts_with("str") => plain(table.store),
            _ if name.starts_with("tbb") || name.starts_with("tbh") => jump(2),
            _ if name.starts_with("cbz") || name.starts_with("cbnz") => jump(1),
            "bl" | "blx" => Some(Cost { straight: 1, jump: table.refill + table.link, load: false }),
            _ if name.starts_with("bic") || name.starts_with("bfc") || name.starts_with("bfi") => plain(1),
            "bkpt" => plain(1),
            _ if name.starts_with('b') => jump(1),
            _ if name.starts_with("umull") || name.starts_with("smull") => plain(table.long_multiply),
            _ if name.starts_with("umlal") || name.starts_with("smlal") => plain(table.long_multiply),
            _ if name.starts_with("mla") || name.starts_with("mls") => plain(table.multiply_add),
            _ if name.starts_with("udiv") || name.starts_with("sdiv") => plain(12),
            _ if name.starts_with("dsb") || name.starts_with("isb") || name.starts_with("dmb") => plain(4),
            _ if name.starts_with("mrs") || name.starts_with("msr") => plain(table.status),
            // All other instructions take one cycle: moves, sums, shifts, comparisons, bit fields, products,
            // IT.
            _ => plain(1),
        }
    }

    /// Returns the cost of an instruction of the Cortex-M4's FPU (table 7-1). `name` is given without the
    /// leading `v`.
    fn fpu_cost(&self, name: &str) -> Option<Cost> {
        let plain = |straight| Some(Cost { straight, ..Cost::default() });
        let n = self.listed_registers();
        match name {
            _ if name.starts_with("ldm") || name.starts_with("pop") => plain(1 + n),
            _ if name.starts_with("stm") || name.starts_with("push") => plain(1 + n),
            _ if name.starts_with("ldr") => Some(Cost { straight: 2, jump: 0, load: true }),
            _ if name.starts_with("str") => plain(2),
            _ if name.starts_with("mla") || name.starts_with("mls") => plain(3),
            _ if name.starts_with("nmla") || name.starts_with("nmls") || name.starts_with("fm") => plain(3),
            _ if name.starts_with("fnm") => plain(3),
            _ if name.starts_with("div") || name.starts_with("sqrt") => plain(14),
            // This form moves two core registers at once.
            _ if name.starts_with("mov") && self.operands.matches(',').count() > 1 => plain(2),
            _ => plain(1),
        }
    }
}

/// Returns the number of registers in `r4-r7`, `s16-s31` or `lr`. A double register counts as two.
fn registers_in(part: &str) -> u64 {
    let number = |name: &str| name.get(1..).and_then(|digits| digits.parse::<u64>().ok());
    let weight = if part.starts_with('d') { 2 } else { 1 };
    let count = match part.split_once('-').map(|(first, last)| (number(first.trim()), number(last.trim()))) {
        Some((Some(first), Some(last))) => last.saturating_sub(first) + 1,
        _ => 1,
    };
    weight * count
}

/// Costs of a Cortex-M core, in cycles.
struct Table {
    /// Cycles to refill the pipeline.
    refill: u64,
    /// Additional cycles of a call.
    link: u64,
    /// Additional cycles of a return that pops the program counter.
    pop_pc: u64,
    store: u64,
    multiply_add: u64,
    long_multiply: u64,
    /// Cycles to read or write a status register.
    status: u64,
    float: bool,
}

const M0: Table = Table {
    refill: 2,
    link: 1,
    pop_pc: 1,
    store: 2,
    multiply_add: 1,
    long_multiply: 1,
    status: 4,
    float: false,
};

const M3: Table = Table {
    refill: 2,
    link: 0,
    pop_pc: 0,
    // The address of a store is computed while the previous one is written.
    store: 1,
    multiply_add: 2,
    long_multiply: 5,
    status: 2,
    float: false,
};

const M4: Table = Table { multiply_add: 1, long_multiply: 1, float: true, ..M3 };

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
----------------
IN: Reset
0x00000400:  b5f0       push     {r4, r5, r6, r7, lr}
0x00000402:  ecf1 0a01  vldmia   r1!, {s1}
0x00000406:  ed92 1a00  vldr     s2, [r2]
0x0000040a:  ed92 1a01  vldr     s3, [r2, #4]
0x0000040e:  ee41 0a20  vmla.f32 s1, s2, s3
0x00000412:  3801       subs     r0, #1
0x00000414:  d1f5       bne      #0x402

Trace 0: 0x7f [0/00000400/0/0] Reset
----------------
IN: Reset
0x00000402:  ecf1 0a01  vldmia   r1!, {s1}
0x00000406:  ed92 1a00  vldr     s2, [r2]
0x0000040a:  ed92 1a01  vldr     s3, [r2, #4]
0x0000040e:  ee41 0a20  vmla.f32 s1, s2, s3
0x00000412:  3801       subs     r0, #1
0x00000414:  d1f5       bne      #0x402

Trace 0: 0x7f [0/00000402/0/0] Reset
Trace 0: 0x7f [0/00000402/0/0] Reset
----------------
IN: Reset
0x00000416:  bdf0       pop      {r4, r5, r6, r7, pc}

Trace 0: 0x7f [0/00000416/0/0] Reset
";

    #[test]
    fn estimate_sums_blocks_loads_and_jumps() {
        // Expected cycles: push 1 + 5; in the loop vldmia 1 + 1, two adjacent loads 2 + 1, vmla 3, subs 1,
        // bne 1, in total 10, and 2 for each of the two jumps back; pop 1 + 5.
        assert_eq!(estimate(Core::M4, LOG.as_bytes()), Ok(6 + 3 * 10 + 2 * 2 + 6));
        assert!(estimate(Core::M3, LOG.as_bytes()).is_err(), "the M3 has no FPU");
    }

    #[test]
    fn estimate_ignores_block_that_was_traced_but_not_executed() {
        let stopped_log =
            format!("{LOG}Trace 0: 0x7f [0/00000402/0/0] Reset\nStopped execution of TB chain before 0x7f\n");
        // The jump was executed, but the block was not.
        assert_eq!(estimate(Core::M4, stopped_log.as_bytes()), Ok(46 + 2));
        let recompiled_log = format!("{LOG}cpu_io_recompile: rewound execution of TB to 00000428\n");
        assert!(estimate(Core::M4, recompiled_log.as_bytes()).is_err());
    }

    #[test]
    fn malformed_log_is_an_error() {
        assert!(estimate(Core::M4, "Trace 0: 0x7f [0/00000400/0/0]\n".as_bytes()).is_err());
        assert!(estimate(Core::M4, "Trace 0: nothing\n".as_bytes()).is_err());
        assert!(estimate(Core::M4, "0x00000402:\n".as_bytes()).is_err());
    }

    #[test]
    fn risc_v_log_is_parsed() {
        let log = "\
0x80000000:  0202a583          lw                      a1,32(t0)
0x80000004:  00b50533          add                     a0,a0,a1                # comment
0x80000008:  bfdd              j                       -10                     # 0x80000000

Trace 0: 0x7f [0/80000000/0/0]
Trace 0: 0x7f [0/80000000/0/0]
";
        assert_eq!(estimate(Core::Rv32imc, log.as_bytes()), Ok(2 * 4 + 2));
    }
}
