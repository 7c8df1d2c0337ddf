package io.deltaworks.sources;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A streaming source, used by the name of this class: batches of offsets, without rows, that the driver's Python plans.
 *
 * <p>For queries whose {@code foreachBatch} reads by offsets what the batch holds. A source written in Python makes Spark
 * start four processes until its first batch and run a job for the rows of every batch; this one starts none.
 */
public final class PlannedOffsetsProvider implements TableProvider {
  private static final String NAME = "deltaworks-offsets";
  private static final String PLANNER = "planner";
  private static final Map<String, OffsetPlanner> PLANNERS = new ConcurrentHashMap<>();

  /** Makes a planner known by a name, until the query of which it is the option {@code planner} has ended. */
  public static void register(String name, OffsetPlanner planner) {
    PLANNERS.put(name, planner);
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return new StructType().add("offset", "string");
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new OffsetsTable(schema);
  }

  private record OffsetsTable(StructType schema) implements Table, SupportsRead {
    @Override
    public String name() {
      return NAME;
    }

    @Override
    public Set<TableCapability> capabilities() {
      return EnumSet.of(TableCapability.MICRO_BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return () -> new OffsetsScan(schema, options.get(PLANNER));
    }
  }

  private record OffsetsScan(StructType schema, String planner) implements Scan {
    @Override
    public StructType readSchema() {
      return schema;
    }

    @Override
    public String description() {
      return NAME;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
      OffsetPlanner registered = planner == null ? null : PLANNERS.get(planner);
      if (registered == null) {
        throw new IllegalArgumentException("The driver has no planner of offsets called " + planner);
      }
      return new OffsetsStream(planner, registered);
    }
  }

  private static final class JsonOffset extends Offset {
    private final String json;

    JsonOffset(String json) {
      this.json = json;
    }

    @Override
    public String json() {
      return json;
    }
  }

  /** No record: Spark keeps streams as keys, and a planner's hash would be asked of Python. */
  private static final class OffsetsStream implements MicroBatchStream, SupportsTriggerAvailableNow {
    private final String name;
    private final OffsetPlanner planner;

    OffsetsStream(String name, OffsetPlanner planner) {
      this.name = name;
      this.planner = planner;
    }

    @Override
    public Offset initialOffset() {
      return new JsonOffset(planner.initialOffset());
    }

    @Override
    public Offset deserializeOffset(String json) {
      return new JsonOffset(json);
    }

    @Override
    public Offset latestOffset() {
      throw new UnsupportedOperationException("Spark asks for the end of a batch by where it starts");
    }

    /** The limits of a batch are the planner's own. */
    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
      return new JsonOffset(planner.latestOffset(start.json()));
    }

    @Override
    public Offset reportLatestOffset() {
      String newest = planner.reportLatestOffset();
      return newest == null ? null : new JsonOffset(newest);
    }

    @Override
    public void prepareForTriggerAvailableNow() {
      planner.prepareForTriggerAvailableNow();
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
      return new InputPartition[0];
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return partition -> {
        throw new UnsupportedOperationException("A batch of offsets has no rows");
      };
    }

    @Override
    public void commit(Offset end) {}

    @Override
    public void stop() {
      PLANNERS.remove(name);
    }
  }
}
