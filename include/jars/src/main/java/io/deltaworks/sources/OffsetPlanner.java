package io.deltaworks.sources;

/**
 * What says how far a query's next batch reads: an object of the driver's Python, called through Py4J.
 *
 * <p>Offsets are texts of JSON, as they stand in the query's offset log. Two that say the same have to be equal as texts.
 * The methods are called by the query's own thread, one at a time; an exception ends the query.
 */
public interface OffsetPlanner {
  /** Where a query begins that has no checkpoint yet. */
  String initialOffset();

  /** Where the batch after {@code start} ends; {@code start} itself where there is nothing. */
  String latestOffset(String start);

  /** The newest there is, for the query's progress; null where it is not known. */
  String reportLatestOffset();

  /** Have no batch read beyond what is there now. */
  void prepareForTriggerAvailableNow();
}
