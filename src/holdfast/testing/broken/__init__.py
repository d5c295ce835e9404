"""Stores with one planted bug each: a kit that does not catch every one of them proves nothing.

They are decorators over the contract, so that they break any engine in the same way.
"""

from __future__ import annotations

from typing import Final

from holdfast.testing.broken import claiming, keeping, recording, settling, upkeep
from holdfast.testing.broken.base import BrokenStore

__all__ = ["BROKEN_STORES", "BrokenStore"]

BROKEN_STORES: Final[tuple[type[BrokenStore], ...]] = (
    recording.DedupOutsideTheTransaction,
    recording.RequestIdForAllQueues,
    recording.ConflictNotDetected,
    recording.BadItemRefusesTheBatch,
    recording.ForgetsAfterReopen,
    recording.DropsOneInTen,
    recording.DelayIgnored,
    recording.HistoryDropped,
    recording.ResultTruncated,
    recording.PageRepeatsItsEdge,
    claiming.OneMoreThanAsked,
    claiming.PauseIgnored,
    claiming.TypesIgnored,
    claiming.SharesIgnored,
    claiming.LastInFirstOut,
    claiming.PriorityIgnored,
    claiming.RepeatedClaimIdGetsMore,
    claiming.RepeatExtendsLeases,
    claiming.HandsOutTwice,
    claiming.CancelledIsReserved,
    claiming.AttemptCountedTwice,
    claiming.ExtendAcceptsStaleTokens,
    claiming.ExtendHidesCancellation,
    claiming.ExtendDoesNothing,
    settling.AckWithoutToken,
    settling.TokenKeptAfterRequeue,
    settling.SettlementDropped,
    settling.RepeatIsStale,
    settling.StaleIsAccepted,
    settling.ReleaseUsesAnAttempt,
    settling.SnoozeUsesAnAttempt,
    settling.RetryIgnoresItsDelay,
    settling.NoDeadLetters,
    settling.CancelLostOnRetry,
    settling.ReplayKeepsAttempts,
    settling.ResultDropped,
    settling.BadChangeStopsTheBatch,
    keeping.KeepOverwrites,
    keeping.KeepTellsOwnValue,
    keeping.KeepIgnoresTheClaim,
    keeping.RepeatKeepsLonger,
    keeping.KeptUntilPruned,
    keeping.KeptForEver,
    upkeep.PromotesEarly,
    upkeep.ExpiresEarly,
    upkeep.EpochNotChecked,
    upkeep.RequeueWithoutRecheck,
    upkeep.PrunesTooEarly,
    upkeep.PrunesUnfinished,
    upkeep.KeepIgnored,
    upkeep.PromotesNothing,
    upkeep.DutyForEverybody,
    upkeep.EpochStandsStill,
    upkeep.DiscardWithoutRecord,
    upkeep.DiscardKeepsTheTask,
    upkeep.OldMapAccepted,
    upkeep.OldRoutingServed,
)
