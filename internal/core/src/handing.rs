//! Handing over to a successor: nothing begins that cannot be handed over, then nothing is handled at all, and after
//! the decision what runs here ends here while everything else is the successor's.

use crate::hub::Hub;
use crate::input::Input;

impl Hub {
    pub(crate) fn on_takeover(&mut self, _input: Input) {}
}
