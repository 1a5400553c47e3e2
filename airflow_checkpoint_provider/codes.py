"""Every code that a person can meet, and what it means in one line. Runs anywhere.

A code never changes its meaning, so that a search for it finds the right page. Errors carry theirs (``errors``), texts
print theirs (``text``); a test holds all of them against this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CODES: Mapping[str, str] = MappingProxyType(
    {
        # where an attempt starts
        "CKP100": "First attempt of a run: it starts from nothing, and nothing was expected.",
        "CKP101": "The restore story: why a new attempt was made, which checkpoints there are, and where it goes on.",
        "CKP102": "A job whose runs share one history starts from nothing. If there should be a history, stop it now.",
        "CKP103": "A person cleared the task, but the application is byte for byte what the attempt before ran.",
        "CKP104": "Somebody fixed where the next attempt starts; whatever ran is over.",
        "CKP110": "The driver of an earlier try is alive: nothing is submitted, this try follows it.",
        "CKP111": "The run had already finished: nothing is submitted, the task succeeds.",
        "CKP112": "A later try of the run, or a restore, has taken over: this try ends without retry.",
        "CKP113": "Before anything is decided, it is looked whether an earlier driver still lives.",
        "CKP114": "Histories of older runs of the job were swept or closed.",
        # what became of a stage
        "CKP120": "A stage was not computed again: its stored rows were handed out.",
        "CKP121": "A stage was computed again although its rows were stored; the line says what moved.",
        "CKP122": "The plan of a stage was sorted; a stage keeps rows, not their order.",
        # who may start
        "CKP130": "The job is suspended and waits until somebody resumes it.",
        "CKP131": "Another run of the job, or another driver of this launch, is alive.",
        "CKP132": "The driver that stands in the way was asked to stop and has not ended yet.",
        "CKP133": "The driver stopped with a savepoint: the job is suspended until somebody resumes it.",
        "CKP134": "A stop was asked for, but its savepoint was aborted: the job goes on.",
        "CKP135": "A job was suspended with a savepoint, which is whole, but its attempt has not ended.",
        # checkpoints
        "CKP200": "A checkpoint was completed.",
        "CKP201": "A checkpoint was aborted; the job goes on from the one before if it dies now.",
        "CKP202": "The closing table: every checkpoint of the run and what they cost and saved.",
        "CKP203": "A gated checkpoint was acknowledged: its finalize task completes it.",
        "CKP204": "At its end a job waits for the finalize of its gated checkpoints.",
        "CKP205": "A task asked for a checkpoint: the driver takes it at its next barrier.",
        "CKP206": "All have acknowledged the checkpoint; it is not sealed yet.",
        "CKP207": "Files are copied: of a savepoint, of a full checkpoint, or of what was restored from elsewhere.",
        "CKP208": "A completed savepoint is not published yet; anyone who comes next does it.",
        "CKP210": "Checkpoints fail: the job goes on, and a crash costs more with every minute.",
        "CKP211": "More checkpoints failed in a row than are tolerated: the job fails.",
        "CKP220": "The store's answer was lost; the outcome was read back.",
        "CKP230": "Nothing runs that could take a checkpoint.",
        "CKP231": "A checkpoint is pending; the next one is taken afterwards.",
        "CKP232": "The checkpoint has its outcome already, and it is another one than asked for.",
        "CKP233": "Somebody may still need this checkpoint; it is not deleted.",
        "CKP234": "The history is closed.",
        "CKP235": "A checkpoint has more groups of files than one entry of the journal can name.",
        "CKP236": "The run has finished: nothing of it runs any more that could take a checkpoint.",
        "CKP237": "The request for a checkpoint waits for its turn.",
        "CKP238": "The pause between two periodic checkpoints is not over.",
        "CKP239": "Too many requests for checkpoints wait already.",
        "CKP240": "The request for a checkpoint was dropped before its turn came.",
        "CKP241": "A registered object could not say its state: the checkpoint at that barrier was declined.",
        "CKP242": "Somebody stopped waiting for a checkpoint that has no outcome yet; it stays pending.",
        "CKP250": "A savepoint is completed and lies whole at its target.",
        "CKP251": "A savepoint was disposed of.",
        # an attempt is over
        "CKP301": "This attempt was replaced or has ended; what it still sends is refused (exit code 79).",
        # refused
        "CKP402": "Two tasks share one job id.",
        "CKP403": "The run is older than what the state of the job already holds.",
        "CKP404": "State was required and there is none.",
        # a restored state and the job that takes it
        "CKP420": "The checkpoint holds state that nobody claims, and nobody allowed to leave it behind.",
        "CKP421": "Two states would have one name after a renaming.",
        "CKP422": "A renaming, a list of states or an application names what the checkpoint does not hold.",
        "CKP423": "A state was restored as one kind and is asked for as another.",
        "CKP424": "What had finished when the checkpoint was taken does not fit the plan that restores it.",
        "CKP425": "The number of key groups of a restored state is not that of the job that takes it.",
        "CKP426": "At the end of a run: restored state that nobody asked for was handed on to the next checkpoints.",
        "CKP427": "At the end of a run: restored state that nobody asked for was left behind, as allow_non_restored_state says.",
        "CKP430": "A history is not closed while something in it runs, or is kept.",
        "CKP440": "Another job, or who disposes of it, owns the deletion of this savepoint.",
        "CKP441": "Where a savepoint is to be published lies another one.",
        "CKP442": "The savepoint was disposed of.",
        "CKP443": "The history of a savepoint was not found, so nobody can be asked whether a job needs it.",
        "CKP501": "The application never opened a CheckpointedJob: a retry starts from zero.",
        # what somebody wrote
        "CKP601": "A job id, uid, item or pointer that cannot be used as written.",
        "CKP602": "A number, duration or option that cannot hold.",
        "CKP603": "An option or call that this version does not have.",
        "CKP604": "A column that Parquet cannot store.",
        "CKP605": "A call at a moment or in a way that cannot work.",
        "CKP606": "Two parts that must be of one version are not.",
        "CKP607": "Something that checkpoints need is not installed where the line was written.",
        # the store
        "CKP610": "The checkpoint storage did not do what was asked.",
        "CKP611": "The store refused access. This is never taken for an absent checkpoint.",
        "CKP612": "This is no place for checkpoints: not a store, not the one meant, or two writers can both win.",
        "CKP613": "The store does not answer; trying again may help.",
        "CKP614": "The store did not say whether it wrote: read back before you act.",
        # the journal and what it names
        "CKP620": "Written by a newer version of this package.",
        "CKP621": "Something that was written whole is not whole any more.",
        "CKP622": "The history was deleted by hand and begun anew under a running process.",
        "CKP623": "An earlier try wrote to a history that is not there any more.",
        "CKP624": "No such checkpoint: never made, aborted, or deleted since.",
        "CKP630": "The command contradicts what the journal holds.",
        "CKP640": "Airflow could not say whether a connection exists.",
        "CKP641": "There is no connection, and no other place where the checkpoints could be.",
        "CKP900": "An error of this package that has no code of its own.",
    }
)
